"""Tables in a file of their own are told apart by their numbers, as programs are by them."""

import pickle

import numpy as np

from numpyro_fwd.table_file import TableFile


def test_tables_are_equal_if_their_numbers_are():
    table = np.arange(6.0).reshape(3, 2)
    one, same, other = TableFile(table), TableFile(table.copy()), TableFile(table + 1.0)
    assert one == same and hash(one) == hash(same)
    assert one != other and one != table.tolist()
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    np.testing.assert_array_equal(again.source[:], table)
