//go:build ibverbs && linux && cgo

package ibverbs

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// A QP of iWARP is in RTS by the time that who makes the connection hears of it,
// and one that is lost stays so. (That of RoCE is moved there by ourselves.)
func TestStateOnceEstablished(t *testing.T) {
	for _, c := range []struct {
		event      int
		from, want driver.QPState
	}{
		{cverbs.CMEstablished, driver.QPStateInit, driver.QPStateRTS},
		{cverbs.CMEstablished, driver.QPStateErr, driver.QPStateErr},
		{cverbs.CMConnectResponse, driver.QPStateInit, driver.QPStateInit},
		{cverbs.CMRouteResolved, driver.QPStateInit, driver.QPStateInit},
	} {
		d := bareDevice()
		d.caps.Transport = driver.TransportIWARP
		q := &qp{dev: d, state: c.from}
		id := &cmID{dev: d, qp: q, events: make(chan cverbs.CMEvent, 1)}
		d.handleCM(id, cverbs.CMEvent{Type: c.event})
		require.Equal(t, c.event, (<-id.events).Type)
		state, err := q.State()
		require.NoError(t, err)
		require.Equal(t, c.want, state)
	}
}

// What the kernel refuses because the connection has gone while it was being made
// is no argument of the caller's.
func TestLostWhileConnecting(t *testing.T) {
	refused := opErr("ibv_modify_qp to RTR", unix.EINVAL)
	require.ErrorIs(t, refused, driver.ErrInvalid)
	for _, c := range []struct {
		state   driver.QPState
		event   int
		err, is error
	}{
		{driver.QPStateErr, cverbs.CMEstablished, refused, unix.ECONNRESET},
		{driver.QPStateErr, cverbs.CMEstablished, context.Canceled, context.Canceled},
		{driver.QPStateInit, cverbs.CMEstablished, refused, driver.ErrInvalid},
		{driver.QPStateInit, cverbs.CMRejected, refused, unix.ECONNRESET},
	} {
		d := bareDevice()
		q := &qp{dev: d, state: c.state, destroyed: true} // so that no device is asked
		id := &cmID{dev: d, destroyed: true, events: make(chan cverbs.CMEvent, 1)}
		id.deliver(cverbs.CMEvent{Type: c.event})
		err := q.fail(id, c.err)
		require.ErrorIs(t, err, c.is)
		if c.is != driver.ErrInvalid {
			require.NotErrorIs(t, err, driver.ErrInvalid)
		}
		require.ErrorContains(t, err, c.err.Error())
	}
}
