package node

import (
	"context"
	"errors"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// statusOf says which status travels for an error. The order is that of looking.
var statusOf = []struct {
	err    error
	status wire.Status
}{
	{store.ErrNotFound, wire.StatusNotFound},
	{store.ErrBadKey, wire.StatusBadKey},
	{store.ErrNoSpace, wire.StatusNoSpace},
	{store.ErrDamaged, wire.StatusDamaged},
	{store.ErrUnreadable, wire.StatusUnreadable},
	{store.ErrChecksum, wire.StatusChecksum},
	{store.ErrSize, wire.StatusSize},
	{store.ErrRange, wire.StatusRange},
	{wire.ErrMalformed, wire.StatusBadRequest},
	{wire.ErrVersion, wire.StatusVersion},
	{messenger.ErrInvalid, wire.StatusBadRequest},
	{messenger.ErrStaleGrant, wire.StatusBadRequest},
	{store.ErrClosed, wire.StatusShuttingDown},
	{context.DeadlineExceeded, wire.StatusTimeout},
	{context.Canceled, wire.StatusTimeout},
	{buffer.ErrQuota, wire.StatusBusy},
	{buffer.ErrExhausted, wire.StatusBusy},
}

// status translates err, and logs what the node's operator should see: the client is told what it is about, and not
// where the node keeps its files.
func (n *Node) status(err error) (wire.Status, string) {
	var s wire.Status
	if !errors.As(err, &s) {
		s = wire.StatusInternal
		for _, known := range statusOf {
			if errors.Is(err, known.err) {
				s = known.status
				break
			}
		}
	}
	if errors.Is(err, messenger.ErrReset) || errors.Is(err, messenger.ErrClosed) {
		n.log.Info("request ended with its connection", "err", err)
		return s, ""
	}
	switch s {
	case wire.StatusDamaged, wire.StatusUnreadable, wire.StatusInternal, wire.StatusNoSpace:
		n.log.Error("request failed", "status", s.Error(), "err", err)
		return s, ""
	case wire.StatusChecksum:
		n.log.Warn("request failed", "status", s.Error(), "err", err)
	}
	if errors.Is(s, err) {
		return s, "" // the status says it all
	}
	return s, err.Error()
}
