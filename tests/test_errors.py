"""Bad data, models and machines: each gives one line that says what is wrong, where, and what to do."""

import bad_inputs
import pytest

from reversal.common.errors import UserError


@pytest.mark.parametrize(
    "use, expected", [case[1:] for case in bad_inputs.FILES], ids=[case[0] for case in bad_inputs.FILES]
)
def test_a_bad_input_gives_one_line(use, expected, tmp_path):
    with pytest.raises(UserError) as error:
        use(tmp_path)
    line = str(error.value).replace(f"{tmp_path}/", "").replace(f"{bad_inputs.ROOT}/", "")
    assert expected in line and "\n" not in line
