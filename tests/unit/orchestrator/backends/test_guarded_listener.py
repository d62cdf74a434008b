import pytest

from orchestrator.backends.guarded_listener import GuardedListener
from tests.contract.trials import Recorder


def test_what_the_listener_raised_is_raised_again_however_it_was_wrapped() -> None:
    guarded = GuardedListener(Recorder())
    guarded.reraise()
    with pytest.raises(RuntimeError, match="wrapped"):
        try:
            with guarded.listening():
                raise OSError("disk full")
        except OSError as error:
            raise RuntimeError("wrapped") from error
    with pytest.raises(OSError, match="disk full"):
        guarded.reraise()


def test_the_listener_is_called_as_it_is() -> None:
    recorder = Recorder()
    with GuardedListener(recorder).listening() as listener:
        listener.ticked()
    assert recorder.ticks == 1
