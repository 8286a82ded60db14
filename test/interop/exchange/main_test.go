package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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
			var said string
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
			o.report = func(s string) { said = s }
			require.NoError(t, exchange(o))
			require.NoError(t, <-first)
			t.Log(said)
			require.Regexp(t, `^200 messages and 30 calls each way, .* connections made again [1-9]`, said)
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

func TestExchangeWithoutPeer(t *testing.T) {
	o := options{device: "tcp", addr: "tcp://127.0.0.1:0", peer: "tcp://127.0.0.1:1", n: 1, size: 1, limit: 100 * time.Millisecond}
	require.ErrorContains(t, exchange(o), "deadline exceeded")
}
