package verbs_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// outOfBandQP makes a QP on a device that fails by script.
func outOfBandQP(t *testing.T, s *verbstest.Script, change func(*driver.Caps)) *verbs.QP {
	d, err := verbs.NewDevice(verbstest.NewFaulty(newLoop(change), s), verbs.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	pd, err := d.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pd.Close()) })
	cq, err := d.CreateCQ(verbs.CQConfig{Depth: 16})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cq.Close()) })
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
	require.NoError(t, err)
	t.Cleanup(func() { _, err := qp.Close(); require.NoError(t, err) })
	return qp
}

// failing is a script that fails op while *on.
func failing(on *bool, op verbstest.Op, err error) *verbstest.Script {
	return &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == op && *on {
			return verbstest.Fault{Err: err}
		}
		return verbstest.Fault{}
	}}
}

func withOutOfBand(c *driver.Caps) { c.OutOfBand = true }

// A transition that the device refuses leaves the QP where it was, and it can
// be tried again.
func TestModifyRefusedByDevice(t *testing.T) {
	refused := errors.New("refused")
	fail := false
	qp := outOfBandQP(t, failing(&fail, verbstest.CallModify, refused), withOutOfBand)
	remote := verbs.QPEndpoint{QPN: 7, LID: 3, MTU: 1024}
	for _, step := range []struct {
		attr   verbs.ModifyAttr
		before verbs.QPState
	}{
		{verbs.ModifyAttr{State: verbs.QPStateInit}, verbs.QPStateInit},
		{verbs.ModifyAttr{State: verbs.QPStateRTR, Remote: remote}, verbs.QPStateInit},
		{verbs.ModifyAttr{State: verbs.QPStateRTS}, verbs.QPStateRTR},
	} {
		fail = true
		require.ErrorIs(t, qp.Modify(step.attr), refused)
		fail = false
		require.Equal(t, step.before, qp.State())
		info, err := qp.Query()
		require.NoError(t, err)
		require.Equal(t, step.before == verbs.QPStateRTR, info.EverConnected)
		require.NoError(t, qp.Modify(step.attr))
		require.Equal(t, step.attr.State, qp.State())
	}
	_, err := qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
	require.NoError(t, err)
}

// After a refused RTR the QP may still be connected the other way.
func TestConnectAfterModifyRefused(t *testing.T) {
	fail := true
	qp := outOfBandQP(t, failing(&fail, verbstest.CallModify, errors.New("refused")), withOutOfBand)
	require.Error(t, qp.Modify(verbs.ModifyAttr{State: verbs.QPStateRTR, Remote: verbs.QPEndpoint{QPN: 7, LID: 3, MTU: 1024}}))
	_, err := qp.Connect(t.Context(), "loop:1", verbs.ConnParam{})
	require.NoError(t, err)
	require.NoError(t, qp.Disconnect())
}

func TestEndpointFails(t *testing.T) {
	gone := errors.New("no port")
	fail := true
	qp := outOfBandQP(t, failing(&fail, verbstest.CallEndpoint, gone), withOutOfBand)
	_, err := qp.Endpoint()
	require.ErrorIs(t, err, gone)
	fail = false
	ep, err := qp.Endpoint()
	require.NoError(t, err)
	require.Equal(t, qp.QPN(), ep.QPN)
}

// The capability decides, whatever methods the driver has.
func TestModifyWithoutCapability(t *testing.T) {
	qp := outOfBandQP(t, nil, nil)
	_, err := qp.Endpoint()
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.ErrorIs(t, qp.Modify(verbs.ModifyAttr{State: verbs.QPStateInit}), verbs.ErrNotSupported)
}
