package iwarp_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// A listener that closes while our request is being written has refused it, as
// one has that closes instead of a reply.
func TestClosedBeforeTheRequestIsRefused(t *testing.T) {
	d, err := iwarp.Open(iwarp.Config{Dial: func(context.Context, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		return ours, theirs.Close()
	}})
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	cq, err := d.CreateCQ(verbs.CQConfig{Depth: 2})
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
	require.NoError(t, err)
	_, err = qp.Connect(t.Context(), "127.0.0.1:1", verbs.ConnParam{})
	require.ErrorIs(t, err, verbs.ErrRefused)
	_, err = qp.Close()
	require.NoError(t, err)
	require.NoError(t, cq.Close())
	require.NoError(t, pd.Close())
	require.NoError(t, d.Close())
}
