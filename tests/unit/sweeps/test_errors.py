from sweeps.errors import nearest


def test_nearest_suggests_each_name_once():
    assert nearest("swep", ["mode", "sweep", "sweep"]) == " (did you mean 'sweep'?)"
