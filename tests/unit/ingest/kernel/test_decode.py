"""What the words and registers behind an Xid say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.kernel.decode import decode_xid, driver_branch, is_recovered

LINK_DOWN = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000)"


@pytest.mark.parametrize(
    ("code", "detail", "columns"),
    [
        (
            149,
            LINK_DOWN,
            {
                "unit": "NETIR_LINK_EVT",
                "severity": "fatal",
                "link": 9,
                "subcode": 14,
                "action": "reset_gpu",
                "reason": "peer reset",
            },
        ),
        (
            149,
            "NETIR_LINK_DOWN Fatal XC0 i0 Link 3 (0x02300011 0x0)",
            {
                "unit": "NETIR_LINK_DOWN",
                "severity": "fatal",
                "link": 3,
                "subcode": 17,
                "action": "reset_gpu",
                "reason": "peer too hot",
                "class": "facility",
            },
        ),
        (
            149,
            "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)",
            {"unit": "NETIR", "severity": "fatal", "subcode": 0, "action": "reset_gpu"},
        ),
        (
            145,
            "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x0)",
            {
                "unit": "RLW_SRC_TRACK",
                "severity": "nonfatal",
                "link": 12,
                "subcode": 7,
                "action": "follow_recovery_action",
            },
        ),
        (
            145,
            "RLW_RXPIPE Nonfatal XC0 i0 Link 11 (...)",
            {"unit": "RLW_RXPIPE", "severity": "nonfatal", "link": 11},
        ),
        (145, "RLW_RXPIPE Nonfatal XC0 i0", {"unit": "RLW_RXPIPE", "severity": "nonfatal"}),
        (145, "RLW_RXPIPE Non", {"unit": "RLW_RXPIPE"}),
        (150, "MSE Degraded Fatal", {"unit": "MSE", "severity": "fatal"}),
        (144, "SAW fatal 0 0 Link 1 (00000021, 00000002)", {"unit": "SAW", "severity": "fatal"}),
        (150, "MSE_WATCHDOG Fatal", {"unit": "MSE_WATCHDOG", "severity": "fatal"}),
        (
            74,
            "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
            {"link": 14, "severity": "fatal", "reason": "unexplained"},
        ),
        (
            74,
            "NVLink: non-fatal error detected on link 2(0x600000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
            {"link": 2, "severity": "nonfatal", "reason": "marginal signal"},
        ),
        (74, "NVLink: fatal error detected on link 1", {"link": 1, "severity": "fatal"}),
        (
            154,
            "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            {"action": "reset_gpu", "severity": "fatal", "reason": "GPU Reset Required"},
        ),
        (
            154,
            "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
            {"action": "restart_host", "severity": "fatal", "reason": "OS Reboot"},
        ),
        (
            154,
            "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            {"action": "none", "severity": "info", "reason": "None"},
        ),
        (154, "(", {"action": "unknown"}),
        (13, "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range", {"unit": "GPC 1 TPC 3"}),
        (13, "Graphics Exception: ESR 0x50df30=0x107000e", {}),
        (79, "GPU has fallen off the bus.", {}),
        (149, "", {}),
    ],
)
def test_a_line_is_read_as_far_as_it_goes(code, detail, columns):
    assert decode_xid(code, detail).columns == columns


def test_the_kernels_word_counts_more_than_the_table_and_the_difference_is_told():
    decoded = decode_xid(145, "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000040 0x0)")
    assert decoded.columns["severity"] == "nonfatal"
    assert decoded.columns["action"] == "unknown"
    assert decoded.notes == ("the catalog calls it fatal, the kernel nonfatal",)


@pytest.mark.parametrize(("driver", "noted"), [(None, 0), ("570.124.06", 0), ("575", 1), ("R580", 1)])
def test_a_driver_that_does_not_fit_the_registers_is_told(driver, noted):
    decoded = decode_xid(149, LINK_DOWN, driver)
    assert decoded.columns["reason"] == "peer reset"
    assert len(decoded.notes) == noted


@pytest.mark.parametrize(
    ("text", "branch"),
    [("575", 575), ("R565", 565), ("580.82.07", 580), ("", None), (None, None), ("new", None)],
)
def test_a_driver_has_a_branch(text, branch):
    assert driver_branch(text) == branch


def test_only_advice_that_falls_to_none_says_that_a_gpu_has_recovered():
    assert is_recovered("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert not is_recovered("GPU recovery action changed from 0x0 (None) to 0x0 (None)")
    assert not is_recovered("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert not is_recovered("(")


WORDS = st.sampled_from(
    [
        "NETIR_LINK_EVT",
        " Fatal ",
        "Nonfatal",
        "XC0 i0 Link 09 ",
        "(0x025525c6 ",
        "0x0",
        ")",
        "NVLink: ",
        " error",
        "(GPC 1, ",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 200), st.lists(st.one_of(WORDS, st.text(max_size=8))).map("".join))
def test_no_detail_is_too_strange(code, detail):
    decoded = decode_xid(code, detail)
    assert set(decoded.columns) <= {"unit", "severity", "link", "subcode", "action", "reason", "class"}
    assert 0 <= decoded.columns.get("link", 0) <= 9_999
