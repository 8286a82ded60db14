package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// The demonstration ends with an error where memory is missing.
func TestBalanced(t *testing.T) {
	require.NoError(t, balanced(buffer.Account{Free: 100, Total: 100}))
	for _, a := range []buffer.Account{
		{Held: 1, Free: 99, Total: 100},
		{Posted: 1, Free: 99, Total: 100},
		{Free: 99, Total: 100},
	} {
		require.ErrorContains(t, balanced(a), "memory is missing", "%+v", a)
	}
}

// And where what comes back is not what was stored.
func TestChecker(t *testing.T) {
	const size = 3 << 20 // the source repeats itself meanwhile
	s := newSource()
	data, err := io.ReadAll(s.reader(7, size))
	require.NoError(t, err)
	require.Len(t, data, size)
	n, err := s.checker(7).Write(data)
	require.NoError(t, err)
	require.Equal(t, size, n)
	for _, at := range []int{0, size / 2, size - 1} {
		data[at] ^= 1
		_, err := s.checker(7).Write(data)
		require.ErrorContains(t, err, "the data differs", at)
		data[at] ^= 1
	}
	_, err = s.checker(7).Write(data[1:])
	require.Error(t, err, "what was stored begins elsewhere")
	_, err = s.checker(8).Write(data)
	require.Error(t, err, "another object")
}
