package node

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// When a connection ends with a transfer on it, the log says who has ended that.
func TestWhoEndedATransfer(t *testing.T) {
	for _, x := range []struct {
		cause error
		said  string
	}{
		{nil, "transfer ended by its client"},
		{errors.New("pulling: the connection is gone"), "transfer ended by its client"},
		{wire.StatusShuttingDown, "transfer ended by the node, which is shutting down"},
		{wire.StatusTimeout, "transfer ended by the node: its client asked for nothing more"},
	} {
		var log bytes.Buffer
		c := new(messenger.Connection)
		tr := newTransfer("put", "key", c, wire.TypePutWindow)
		n := &Node{log: slog.New(slog.NewTextHandler(&log, nil)), sessions: map[*messenger.Connection]*session{
			c: {transfers: map[uint64]*transfer{1: tr}},
		}}
		if x.cause != nil {
			tr.end(x.cause)
		}
		n.HandleReset(c)
		require.Contains(t, log.String(), `msg="`+x.said+`"`)
		require.Error(t, tr.cause(), "it has ended")
		require.Empty(t, n.sessions)
	}
}
