package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

func TestMain(m *testing.M) {
	verbstest.Main(m,
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

func TestExchange(t *testing.T) {
	for _, device := range []string{"iwarp", "tcp"} {
		t.Run(device, func(t *testing.T) {
			o := options{device: device, addr: device + "://127.0.0.1:0", n: 200, size: 64 << 10, seed: 1, limit: time.Minute}
			at := make(chan messenger.AddrVec, 1)
			first := make(chan error, 1)
			go func() { // ends with the exchange
				o := o
				o.ready = func(v messenger.AddrVec) { at <- v }
				first <- exchange(o)
			}()
			select {
			case v := <-at:
				o.peer = v[0].URL
			case err := <-first:
				require.NoError(t, err)
			}
			require.NoError(t, exchange(o))
			require.NoError(t, <-first)
		})
	}
}

// Connections are cut while messages and calls go both ways.
func TestExchangeWithCallsAndCuts(t *testing.T) {
	for _, device := range []string{"iwarp", "tcp"} {
		t.Run(device, func(t *testing.T) {
			var said []string
			o := options{
				device: device, addr: device + "://127.0.0.1:0", n: 200, size: 64 << 10, calls: 30, cut: 60, seed: 1, limit: time.Minute,
			}
			at := make(chan messenger.AddrVec, 1)
			first := make(chan error, 1)
			go func() { // ends with the exchange
				o := o
				o.seed = 2
				o.ready = func(v messenger.AddrVec) { at <- v }
				first <- exchange(o)
			}()
			select {
			case v := <-at:
				o.peer = v[0].URL
			case err := <-first:
				require.NoError(t, err)
			}
			o.report = func(s string) { said = append(said, s) }
			require.NoError(t, exchange(o))
			require.NoError(t, <-first)
			t.Log(said)
			require.Len(t, said, 2)
			require.Equal(t, "under way", said[0])
			require.Regexp(t, `^200 messages and 30 calls each way, .* connections made again [1-9]`, said[1])
		})
	}
}

// The adapter in software may speak for a device of the kernel.
func TestSchemeIsThatOfTheAddress(t *testing.T) {
	for _, scheme := range []string{messenger.SchemeIWARP, messenger.SchemeRDMA} {
		d, got, err := open(options{device: "iwarp", addr: scheme + "://127.0.0.1:0"})
		require.NoError(t, err)
		require.Equal(t, scheme, got)
		require.NoError(t, d.Close())
	}
}

// What the other does wrong is an error also where all that was awaited has come.
func TestViolation(t *testing.T) {
	at := make(chan messenger.AddrVec, 1)
	ended := make(chan error, 1)
	go func() { // ends with the exchange
		ended <- exchange(options{
			device: "tcp", addr: "tcp://127.0.0.1:0", n: 1, limit: time.Minute, ready: func(v messenger.AddrVec) { at <- v },
		})
	}()
	arena, err := buffer.New(buffer.Config{Budget: 16 << 20})
	require.NoError(t, err)
	m, err := messenger.New(messenger.Config{Name: messenger.EntityName{Type: messenger.OSD, Num: 1}, Arena: arena})
	require.NoError(t, err)
	m.SetPolicy(messenger.OSD, messenger.LosslessPeer())
	addrs, err := messenger.ParseAddrs("tcp://127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, m.Bind(t.Context(), addrs))
	c, err := m.ConnectTo(messenger.OSD, <-at)
	require.NoError(t, err)
	data := messenger.NewMessage(typeData)
	data.Front = make([]byte, frontLen) // number 0, and the CRC32C of nothing
	for _, msg := range []*messenger.Message{messenger.NewMessage(77), data, messenger.NewMessage(typeEnd)} {
		require.NoError(t, c.Send(t.Context(), msg))
	}
	require.ErrorContains(t, <-ended, "a message of type 77")
	require.NoError(t, shutdown(m))
	require.NoError(t, closeArena(arena))
}

func TestVerdict(t *testing.T) {
	violation, other := errors.New("violation"), errors.New("other")
	ctx, stop := context.WithCancelCause(t.Context())
	require.NoError(t, verdict(ctx, nil))
	require.Equal(t, other, verdict(ctx, other))
	stop(violation)
	require.Equal(t, violation, verdict(ctx, nil))
	require.Equal(t, violation, verdict(ctx, violation))
	err := verdict(ctx, other)
	require.ErrorIs(t, err, violation)
	require.ErrorIs(t, err, other)
}

func TestExchangeWithoutPeer(t *testing.T) {
	o := options{device: "tcp", addr: "tcp://127.0.0.1:0", peer: "tcp://127.0.0.1:1", n: 1, size: 1, limit: 100 * time.Millisecond}
	require.ErrorContains(t, exchange(o), "deadline exceeded")
}
