package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/env"
)

func TestBars(t *testing.T) {
	more := pairing{name: "stream", unit: "MB/s", scale: 1, bar: map[string]float64{"rxe": 0.9}}
	less := pairing{name: "ping", unit: "us", scale: 1, less: true, bar: map[string]float64{"rxe": 1.5}}
	for _, c := range []struct {
		p            pairing
		kind         string
		ours, theirs []float64
		met          bool
		ends         string
	}{
		{more, "rxe", []float64{90, 10, 95}, []float64{100, 1, 1000}, true, "| 0.90 | >= 0.90 |"},
		{more, "rxe", []float64{80}, []float64{100}, false, "| 0.80 | >= 0.90 (missed) |"},
		{more, "siw", []float64{1}, []float64{100}, true, "| 0.01 |  |"},
		{less, "rxe", []float64{14, 16}, []float64{10, 10}, true, "| 1.50 | <= 1.50 |"},
		{less, "rxe", []float64{16}, []float64{10}, false, "| 1.60 | <= 1.50 (missed) |"},
	} {
		row, met := c.p.row(c.kind, c.ours, c.theirs)
		require.Equal(t, c.met, met, row)
		require.Contains(t, row, c.ends)
	}
}

// A selection that matches nothing is an error.
func TestNothingSelected(t *testing.T) {
	_, err := compare(&options{device: "iwarp"}, 1, "no such figure", true)
	require.Error(t, err)
}

// The payload of one stream is sent, that of the other is fetched, whatever the device can confine.
func TestKindsOfStreams(t *testing.T) {
	device := env.Device()
	if device == "" {
		device = "iwarp"
	}
	o := &options{device: device, addr: env.Addr()}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for kind, want := range map[string]uint64{eager: 0, fetched: 5} {
		count := new(counter)
		gone := make(chan struct{})
		b, err := newNode(o, kind, conn.Config{OnMessage: count.message, OnFault: func(*conn.Conn, error) { close(gone) }})
		require.NoError(t, err)
		require.NoError(t, b.ep.Listen(ctx, env.ListenAddr()))
		a, err := newNode(o, kind, conn.Config{})
		require.NoError(t, err)
		c, err := a.ep.Dial(ctx, b.ep.Addr().String())
		require.NoError(t, err)
		l, err := a.payload().GetList(ctx, mib, buffer.Anonymous)
		require.NoError(t, err)
		for range 5 {
			require.NoError(t, c.Send(ctx, conn.Message{Payload: l.Share()}))
		}
		l.Release()
		require.NoError(t, c.Shutdown(ctx))
		<-gone
		require.Equal(t, want, c.Stats().RendezvousSent, kind)
		require.Equal(t, 5, count.n)
		require.NoError(t, a.close())
		require.NoError(t, b.close())
	}
}
