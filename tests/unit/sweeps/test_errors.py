from sweeps.errors import nearest


def test_a_name_that_is_valid_twice_is_proposed_once():
    assert nearest("swep", ["mode", "sweep", "sweep"]) == " (did you mean 'sweep'?)"
