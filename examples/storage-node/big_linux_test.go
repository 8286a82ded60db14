package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A file of 1 GiB (a smaller one over the byte stream) goes to the node and comes back; both processes stay within their arena and 64 MiB.
func TestGiB(t *testing.T) {
	if testing.Short() {
		t.Skip("moves more than 2 GiB")
	}
	t.Parallel()
	const arena, slack = 64 << 20, 64 << 20
	for device, size := range map[string]int64{adapter: 1 << 30, "tcp": 200 << 20} {
		t.Run(device, func(t *testing.T) {
			in := randomFile(t, size)
			p := startNode(t, t.TempDir(), listen(device)...)
			put := command(to(p, "put", "big", in)...)
			measure(t, p, put, arena+slack, func() {})

			// What comes back is compared as it comes: a third gigabyte on the disk would show nothing more.
			get := command(to(p, "get", "big", "-")...)
			out, err := get.StdoutPipe()
			require.NoError(t, err)
			f, err := os.Open(in)
			require.NoError(t, err)
			defer f.Close()
			measure(t, p, get, arena+slack, func() { sameBytes(t, f, out) })
			requireIdle(t, p, device)
		})
	}
}

var peakLine = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// measure runs cmd to its end, and f meanwhile, and checks that neither it nor the node ever had limit bytes resident.
func measure(t *testing.T, p *process, cmd *exec.Cmd, limit int64, f func()) {
	t.Helper()
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	// The peak that wait4 reports has that of this process in it. The kernel's count for the client itself never falls, so
	// that the last look is the right one.
	exited := make(chan struct{})
	peak := make(chan int64, 1)
	go func() {
		var most int64
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			if n, err := residentPeak(cmd.Process.Pid); err == nil {
				most = n
			}
			select {
			case <-tick.C:
			case <-exited:
				peak <- most
				return
			}
		}
	}()
	f()
	err := cmd.Wait()
	close(exited)
	client := <-peak
	require.NoError(t, err)
	node, err := residentPeak(p.cmd.Process.Pid)
	require.NoError(t, err)
	t.Logf("%s: client %d MiB resident at most, node %d MiB", cmd.Args[1], client>>20, node>>20)
	require.Positive(t, client)
	require.Less(t, client, limit, "client")
	require.Less(t, node, limit, "node")
}

// residentPeak is the most memory that a process ever had resident, in bytes.
func residentPeak(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	m := peakLine.FindSubmatch(status)
	if m == nil {
		return 0, errors.New("no peak: the process has ended")
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	return n << 10, err
}
