package doctor

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/verbs"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The default pool of ants, which package buffer imports, lives as long as the process.
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

// What a device can not be opened for has a remedy of its own, never the error again.
func TestOpenRemedy(t *testing.T) {
	for err, part := range map[error]string{
		fmt.Errorf("ibv_open_device: %w", syscall.EACCES):                      "group",
		fmt.Errorf("ibv_open_device: %w", syscall.EPERM):                       "group",
		fmt.Errorf("no RDMA device x: %w", os.ErrNotExist):                     "listed above",
		fmt.Errorf("10.0.0.1 is an address of y, not x: %w", verbs.ErrInvalid): "--device auto",
		fmt.Errorf("ibv_alloc_pd: %w", verbs.ErrLimit):                         "rdma.max",
		fmt.Errorf("ibv_query_device_ex: %w", verbs.ErrDeviceLost):             "dmesg",
		fmt.Errorf("ibv_open_device: %w", syscall.EFAULT):                      "dmesg",
	} {
		require.Contains(t, openRemedy(err), part, "%v", err)
		require.NotContains(t, openRemedy(err), "ibv_")
	}
}

// Where the device can not be opened, the arena is looked at all the same.
func TestArenaWithoutADevice(t *testing.T) {
	r := &Report{cfg: Config{Arena: 1 << 40}}
	r.arena(verbs.Caps{Provider: "ibverbs", Pins: true, MaxMRSize: 4096})
	require.Len(t, r.Problems(), 1)
	require.False(t, r.Usable())
	require.Contains(t, r.problems[0].What, "the arena of 1099511627776 bytes")
	require.NotEmpty(t, r.problems[0].Remedy)
	var b bytes.Buffer
	require.NoError(t, r.Print(&b))
	require.Contains(t, b.String(), "PROBLEM 1: the arena of 1099511627776 bytes")
}
