//go:build unix

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever a client waits for on its own side, a signal ends it in order.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	p := startNode(t, t.TempDir(), listen(adapter)...)
	ok(t, nil, to(p, "put", "k", randomFile(t, 5<<20))...)
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	eventually := func(t *testing.T, f func() bool) {
		t.Helper()
		require.Eventually(t, f, patience, patience/1000)
	}
	// opened opens the FIFO when the other end of it is there, or waits for this one.
	opened := func(t *testing.T, flag int) (f *os.File) {
		t.Helper()
		eventually(t, func() bool {
			var err error
			f, err = os.OpenFile(fifo, flag|syscall.O_NONBLOCK, 0)
			return err == nil
		})
		return f
	}
	// client runs the program, interrupts it when waits has returned, and checks how it ends. The system call that it waited
	// in ends by release.
	client := func(t *testing.T, stdin io.Reader, stdout io.Writer, waits func() (release func() error), args ...string) {
		t.Helper()
		ctx, interrupt := context.WithCancel(t.Context())
		var said bytes.Buffer
		status := make(chan int, 1)
		go func() { status <- run(ctx, to(p, args...), stdin, stdout, &said) }() // ends with ctx
		release := waits()
		interrupt()
		select {
		case s := <-status:
			require.Equal(t, exitError, s)
			require.Contains(t, said.String(), "storage-node: error: interrupted\n")
		case <-time.After(patience):
			require.Fail(t, "it has not ended")
		}
		require.NoError(t, release())
		requireIdle(t, p, p.device())
	}

	t.Run("put, silent standard input", func(t *testing.T) {
		in, silent := io.Pipe()
		client(t, in, io.Discard, func() func() error {
			eventually(t, func() bool { return p.stat()["transfers"] == "1" })
			return silent.Close
		}, "put", "never", "-")
	})
	t.Run("put, silent FIFO", func(t *testing.T) {
		client(t, nil, io.Discard, func() func() error {
			f := opened(t, os.O_WRONLY)
			eventually(t, func() bool { return p.stat()["transfers"] == "1" })
			return f.Close
		}, "put", "never", fifo)
	})
	t.Run("get, FIFO without a reader", func(t *testing.T) {
		client(t, nil, io.Discard, func() func() error {
			eventually(t, func() bool { return p.stat()["connections"] == "2" })
			return func() error { return opened(t, os.O_RDONLY).Close() }
		}, "get", "k", fifo)
	})
	t.Run("get, standard output that nobody reads on", func(t *testing.T) {
		out, stdout := io.Pipe()
		client(t, nil, stdout, func() func() error {
			_, err := io.ReadFull(out, make([]byte, 1<<20))
			require.NoError(t, err)
			return out.Close
		}, "get", "k", "-")
	})
	require.Contains(t, fails(t, nil, to(p, "stat", "never")...), "no such object")
}

// silentPut starts a client whose standard input says nothing, and waits until the node has its transfer.
func silentPut(t *testing.T, p *process) (cmd *exec.Cmd, silent io.Closer, said *bytes.Buffer) {
	t.Helper()
	cmd, said = command(to(p, "put", "never", "-")...), new(bytes.Buffer)
	cmd.Stderr = said
	silent, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return p.stat()["transfers"] == "1" }, patience, patience/1000)
	return cmd, silent, said
}

// A process that reads a pipe which says nothing ends with the first signal, a node that waits for it with the second.
func TestSignals(t *testing.T) {
	t.Parallel()
	p := startNode(t, t.TempDir(), append(listen(adapter), "--grace", "1h")...)
	first, _, said := silentPut(t, p)
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	require.Error(t, first.Wait())
	require.Equal(t, exitError, first.ProcessState.ExitCode(), said)
	require.Contains(t, said.String(), "storage-node: error: interrupted\n")
	requireIdle(t, p, p.device())

	second, silent, _ := silentPut(t, p)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.lineAfter(0, shutdownLine)
	require.Eventually(t, func() bool { // the first of these may come before the one above has been noted
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.end:
			return true
		default:
			return false
		}
	}, patience, patience/1000)
	require.Error(t, p.cmd.Wait())
	require.Equal(t, syscall.SIGTERM, p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	require.NoError(t, silent.Close())
	require.Error(t, second.Wait())
}

// However long the grace is, what follows has its own time.
func TestLongGrace(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for 9 s of grace")
	}
	t.Parallel()
	p := startNode(t, t.TempDir(), append(listen(adapter), "--grace", "9s")...)
	put, silent, _ := silentPut(t, p)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	log := p.waitLog()
	require.NoError(t, p.cmd.Wait(), log)
	require.Contains(t, log, "end the transfers that are left: 1")
	require.Contains(t, log, "posted 0, held 0,")
	require.NoError(t, silent.Close())
	require.Error(t, put.Wait())
}
