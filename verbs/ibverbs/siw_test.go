//go:build ibverbs && linux && cgo

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A context has room for the queues of many objects: one of them lies where libsiw
// can not have it.
func TestManyQueues(t *testing.T) {
	d, _ := testDevice(t)
	for range 300 { // each a page of the context
		q, err := d.CreateCQ(1, nil, 0)
		require.NoError(t, err)
		defer func() { require.NoError(t, q.Destroy()) }()
	}
}
