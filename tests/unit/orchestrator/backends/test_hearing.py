import pytest

from orchestrator.backends.hearing import Hearing
from tests.contract.trials import Recorder


def test_what_the_listener_raised_is_raised_again_however_it_was_wrapped() -> None:
    hearing = Hearing(Recorder())
    hearing.reraise()
    with pytest.raises(RuntimeError, match="wrapped"):
        try:
            with hearing.listening():
                raise OSError("disk full")
        except OSError as error:
            raise RuntimeError("wrapped") from error
    with pytest.raises(OSError, match="disk full"):
        hearing.reraise()


def test_the_listener_is_called_as_it_is() -> None:
    recorder = Recorder()
    with Hearing(recorder).listening() as listener:
        listener.ticked()
    assert recorder.ticks == 1
