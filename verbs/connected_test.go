package verbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// What the peer has sent may be seen before Connect returns: then the connection is
// there, with all that it can do.
func TestConnectedBeforeConnectReturns(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	qp, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, MaxSendWR: 4})
	require.NoError(t, err)
	defer func() {
		_, err := qp.Close()
		require.NoError(t, err)
	}()
	require.Zero(t, qp.Features())
	r.l.made = func() {
		require.Equal(t, verbs.QPStateRTR, qp.State())
		require.True(t, qp.Features().SendInv)
		require.Equal(t, verbs.QPStateRTS, qp.State())
	}
	_, err = qp.Connect(t.Context(), "x:1", verbs.ConnParam{})
	require.NoError(t, err)
}
