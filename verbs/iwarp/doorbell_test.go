package iwarp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// What is deferred goes out in one write when the doorbell rings. (The sender
// goroutine may be about for a while after the connection is made, and would send
// it too: hence the mean.)
func TestDoorbellWritesOnce(t *testing.T) {
	const rounds, each = 200, 8
	x, y := pair(t, endConfig{depth: each})
	writes := func(flags driver.SendFlags, ring func()) float64 {
		before := x.dev.Stats().Writes
		for range rounds {
			for i := range each {
				y.recv(uint64(i))
			}
			for i := range each {
				x.post(driver.SendWR{WRID: uint64(i), Opcode: driver.OpSend, Flags: driver.SendSignaled | flags})
			}
			ring()
			x.wait(x.scq, each)
			y.wait(y.rcq, each)
		}
		return float64(x.dev.Stats().Writes-before) / rounds
	}
	require.Less(t, writes(driver.SendDeferred, x.qp.(driver.Doorbell).Doorbell), 1.5)
	require.Greater(t, writes(0, func() {}), each/2.0)
}
