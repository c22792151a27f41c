import pytest

from pipeline.data.files import expand, expand_couples


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("part-1.en", "part-10.en", "part-2.en", "part-1.de", "part-10.de", "part-2.de", "x[1].en", "x1.de"):
        (tmp_path / name).touch()


def test_wildcards_stand_for_files_sorted_and_other_names_for_themselves():
    assert expand(["part-?.en", "nowhere", "part-*.de"]) == [
        *("part-1.en", "part-2.en", "nowhere"),
        *("part-1.de", "part-10.de", "part-2.de"),
    ]  # fmt: skip
    assert expand(["x[1]*"]) == ["x[1].en"]


def test_couples_are_of_files_for_which_the_wildcards_stand_for_the_same():
    assert expand_couples(["x1.de", "y", "part-?.en", "part-?.de"]) == [
        *("x1.de", "y"),
        *("part-1.en", "part-1.de"),
        *("part-2.en", "part-2.de"),
    ]  # fmt: skip
    assert expand_couples(["x*.en", "x?.de"]) == ["x[1].en", "x1.de"]


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["z*.en", "part-*.de"], r"no file is named like z\*\.en: correct the name"),
        (["part-1.en"], "part-1.en has no partner: files come in couples"),
        (["part-*.en", "part-?.de"], r"part-10.en has no partner among part-\*.en and part-\?.de"),
        (["part-*.en", "x1.de"], "has no partner among"),
    ],
)
def test_names_without_files_or_partners_are_refused(names, complaint):
    with pytest.raises(ValueError, match=complaint):
        expand_couples(names)
