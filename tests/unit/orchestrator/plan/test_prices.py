"""Price lists: a CSV file with what nodes cost."""

from pathlib import Path

import pytest

from orchestrator.plan.prices import cheapest_offer, read_prices
from sweeps.errors import ConfigError

EXAMPLE = Path(__file__).parents[4] / "examples" / "prices.csv"
HEADER = "name,gpu,gpus,price_per_hour,currency,date\n"


def test_the_example_is_read_and_says_that_it_is_one():
    offers = read_prices(EXAMPLE)
    assert {offer.name.partition(" ")[0] for offer in offers} == {"example"}


@pytest.mark.parametrize(
    ("gpus", "name", "per_hour"),
    [(1, "one", 2.2), (3, "one", 6.6), (4, "eight", 8.0), (8, "eight", 8.0), (9, "eight", 16.0), (0.5, "one", 2.2)],
)
def test_the_cheapest_whole_nodes_are_taken(tmp_path, gpus, name, per_hour):
    file = tmp_path / "prices.csv"
    file.write_text(f"{HEADER}one,H100,1,2.2,EUR,2026-01-01\neight,H100,8,8.0,EUR,2026-01-01\nother,A100,8,1,EUR,\n")
    offers = read_prices(file)
    offer = cheapest_offer(offers, "NVIDIA H100 80GB HBM3", gpus)
    assert offer.name == name and offer.per_hour(gpus) == pytest.approx(per_hour)
    assert cheapest_offer(offers, "NVIDIA B200", gpus) is None


@pytest.mark.parametrize(("listed", "gpu"), [("A10", "NVIDIA A100"), ("L4", "NVIDIA L40S"), ("H200", "NVIDIA GH200")])
def test_a_price_of_another_model_is_not_taken(tmp_path, listed, gpu):
    file = tmp_path / "prices.csv"
    file.write_text(f"{HEADER}one,{listed},1,2.2,EUR,\n", encoding="utf-8-sig")  # as spreadsheets write it
    offers = read_prices(file)
    assert cheapest_offer(offers, f"NVIDIA {listed}", 1) is not None and cheapest_offer(offers, gpu, 1) is None


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("a,b\n1,2\n", 1),
        (f"{HEADER}x,H100,0,1,EUR,\ny,H100,1,nan,EUR,\nz, ,1,1,EUR,\nw,H100,1\nv,H100,1,2,50,EUR,\n", 5),
        (f"{HEADER}x,H100,1,1,EUR,\ny,H100,1,1,USD,\n", 1),
    ],
)
def test_all_errors_of_a_file_are_told(tmp_path, text, errors):
    file = tmp_path / "prices.csv"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_prices(file)
    assert len(caught.value.errors) == errors and all(str(file) in error for error in caught.value.errors)


def test_an_error_names_its_line(tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text(f'{HEADER}\n"of two\nlines",H100,1,1,EUR,\n\ny,H100,1,free,EUR,\n')
    with pytest.raises(ConfigError, match=", line 6: "):
        read_prices(file)


def test_spaces_around_values_do_not_matter(tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text(f"{HEADER.replace(',', ', ')}one, H100 , 1, 2.2, EUR,\ntwo,H100,2,9,EUR, 2026-01-01\n, , ,,,\n")
    first, second = read_prices(file)
    assert (first.gpu, first.currency, second.currency, second.date) == ("H100", "EUR", "EUR", "2026-01-01")


def test_a_folder_is_no_price_list(tmp_path):
    with pytest.raises(ConfigError):
        read_prices(tmp_path)
