//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/client"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/fabric"
	"github.com/argonaut-rdma/argonaut/messenger"
)

var accountLine = regexp.MustCompile(`msg=account posted=(\d+) held=(\d+) free=(\d+) total=(\d+) queue_pairs=(\d+) connections=(\d+) transfers=(\d+)`)

// account makes the node print its account and returns posted, held, free, total, queue pairs, connections, transfers.
func (p *process) account() []string {
	p.t.Helper()
	p.mu.Lock()
	n := len(p.lines)
	p.mu.Unlock()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGUSR1))
	return p.lineAfter(n, accountLine)[1:]
}

// requireAbandoned waits until the node has got rid of clients that are gone: nothing held, no queue pair, no transfer.
// What is posted then are the receive buffers that await the next client.
func requireAbandoned(t *testing.T, p *process) {
	t.Helper()
	var a []string
	require.Eventually(t, func() bool {
		a = p.account()
		return a[1] == "0" && a[4] == "0" && a[5] == "0" && a[6] == "0"
	}, patience, patience/200, "posted, held, free, total, queue pairs, connections, transfers: %v", &a)
}

// Clients are killed in mid-PUT and in mid-GET. The node goes on serving, and nothing of them stays with it.
func TestClientKilled(t *testing.T) {
	for _, device := range devices {
		t.Run(device, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := startNode(t, dir, listen(device)...)
			const size = 24 << 20
			data, err := os.ReadFile(randomFile(t, size))
			require.NoError(t, err)
			ok(t, bytes.NewReader(data), to(p, "put", "kept", "-")...)

			for round := range rounds(t, 4) {
				// The put has read a part of its input, and goes on reading.
				put := command(to(p, "put", "never", "-")...)
				in, err := put.StdinPipe()
				require.NoError(t, err)
				require.NoError(t, put.Start())
				_, err = in.Write(data[:8<<20+rand.IntN(size-8<<20)])
				require.NoError(t, err)
				var flow sync.WaitGroup
				flow.Go(func() {
					for err == nil { // ends with the pipe
						_, err = in.Write(data)
					}
				})
				require.NoError(t, put.Process.Kill())
				require.Error(t, put.Wait())
				flow.Wait()

				// The get has given out a part, and goes on.
				get := command(to(p, "get", "kept", "-")...)
				out, err := get.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, get.Start())
				got := make([]byte, 1+rand.IntN(size/2))
				_, err = io.ReadFull(out, got)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data[:len(got)], got))
				flow.Go(func() { _, _ = io.Copy(io.Discard, out) })
				require.NoError(t, get.Process.Kill())
				flow.Wait()
				require.Error(t, get.Wait())

				key := fmt.Sprintf("round/%d", round)
				ok(t, strings.NewReader(key), to(p, "put", key, "-")...)
				require.Equal(t, key, ok(t, nil, to(p, "get", key, "-")...))
			}
			requireAbandoned(t, p)
			requireIdle(t, p, device)
			require.True(t, string(data) == ok(t, nil, to(p, "get", "kept", "-")...))
			require.Contains(t, fails(t, nil, to(p, "stat", "never")...), "no such object")
			blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "*", "*"))
			require.NoError(t, err)
			require.Len(t, blobs, 1+rounds(t, 4), "unfinished PUTs leave no file")
		})
	}
}

// nothingHeld waits until no buffer of a is held: a connection that has just ended is being taken apart.
func nothingHeld(a *buffer.Arena) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(5 * time.Second)
	for a.Account().Held != 0 {
		select {
		case <-tick.C:
		case <-timeout:
			return fmt.Errorf("buffers are held: %v", a.Holders())
		}
	}
	return nil
}

// gate is a reader that hands out n bytes, says so, and waits before it goes on for ever.
type gate struct {
	n       int
	reached chan struct{}
	open    chan struct{}
}

func (g *gate) Read(p []byte) (int, error) {
	if g.n == 0 {
		close(g.reached)
		<-g.open
		g.n = 1 << 40
	}
	n := min(len(p), g.n)
	clear(p[:n])
	g.n -= n
	return n, nil
}

// goneTimeout is the timeout of a client whose node is killed, and how long the test waits for its error. The error comes
// at once, from the end of the connection; this is what a loaded machine may need for that.
const goneTimeout = 10 * time.Second

// The node is killed in mid-PUT: the client gets a clear error in time, its buffers are back, and the node that is started
// again has what was acknowledged and no trace of the rest.
func TestNodeKilled(t *testing.T) {
	for _, device := range devices {
		t.Run(device, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for round := range rounds(t, 2) {
				p := startNode(t, dir, listen(device)...)
				choice := fabric.Choose(device, p.addr, false)
				f, err := fabric.Open(fabric.Config{Name: messenger.EntityName{Type: messenger.Client, Num: -1}, Choice: choice})
				require.NoError(t, err)
				addrs, err := choice.ParseAddrs(p.addr)
				require.NoError(t, err)
				c, err := client.Dial(context.Background(), f.Messenger, f.Arena, addrs, client.Config{Timeout: goneTimeout})
				require.NoError(t, err)

				acked := fmt.Sprintf("acked/%d", round)
				_, err = c.Put(context.Background(), acked, strings.NewReader(acked), int64(len(acked)), nil)
				require.NoError(t, err)

				g := &gate{n: 10<<20 + rand.IntN(8<<20), reached: make(chan struct{}), open: make(chan struct{})}
				result := make(chan error, 1)
				go func() {
					_, err := c.Put(context.Background(), "torn", g, -1, nil)
					result <- err
				}()
				<-g.reached
				p.kill()
				close(g.open)
				select {
				case err := <-result:
					require.ErrorIs(t, err, client.ErrGone)
					require.Contains(t, err.Error(), `put "torn": lost the connection to the node`)
				case <-time.After(goneTimeout):
					require.Fail(t, "the client does not notice")
				}
				require.NoError(t, nothingHeld(f.Arena))
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				require.NoError(t, f.Close(ctx, func(string) {}))
				cancel()
			}
			p := startNode(t, dir, listen(device)...)
			require.Equal(t, rounds(t, 2), strings.Count(ok(t, nil, to(p, "ls")...), "acked/"))
			require.Contains(t, fails(t, nil, to(p, "stat", "torn")...), "no such object")
			blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "*", "*"))
			require.NoError(t, err)
			require.Len(t, blobs, rounds(t, 2))
		})
	}
}

var shutdownLine = regexp.MustCompile(`msg=shutdown step=(\d+) what="?(\w+)`)

// SIGTERM under load: exit status 0 within 10 s, the steps in order, and each client has an error or its object.
func TestTerminate(t *testing.T) {
	for _, device := range devices {
		t.Run(device, func(t *testing.T) {
			dir := t.TempDir()
			p := startNode(t, dir, listen(device)...)
			data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
			started := make(chan struct{}, 100)
			ended := make(chan error, 100)
			const clients = 3
			for i := range clients {
				go func() {
					ended <- func() error {
						defer func() { started <- struct{}{} }() // also when it failed before
						choice := fabric.Choose(device, p.addr, false)
						f, err := fabric.Open(fabric.Config{Name: messenger.EntityName{Type: messenger.Client, Num: -1}, Choice: choice})
						if err != nil {
							return err
						}
						addrs, err := choice.ParseAddrs(p.addr)
						if err != nil {
							return err
						}
						c, err := client.Dial(context.Background(), f.Messenger, f.Arena, addrs, client.Config{Timeout: 15 * time.Second})
						if err != nil {
							return err
						}
						key := fmt.Sprintf("load/%d", i)
						for n := 0; ; n++ {
							if n == 2 {
								started <- struct{}{}
							}
							if _, err = c.Put(context.Background(), key, bytes.NewReader(data), int64(len(data)), nil); err != nil {
								break
							}
							if _, _, err = c.Get(context.Background(), key, 0, -1, io.Discard, nil); err != nil {
								break
							}
						}
						var e *client.Error
						if !errors.As(err, &e) {
							return err
						}
						if herr := nothingHeld(f.Arena); herr != nil {
							return fmt.Errorf("%w after %w", herr, err)
						}
						ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
						defer cancel()
						return f.Close(ctx, func(string) {})
					}()
				}()
			}
			for range clients {
				<-started
			}
			begin := time.Now()
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
			log := p.waitLog()
			require.NoError(t, p.cmd.Wait(), log)
			require.Less(t, time.Since(begin), 10*time.Second)
			for range clients {
				require.NoError(t, <-ended)
			}
			var steps []string
			for i, m := range shutdownLine.FindAllStringSubmatch(log, -1) {
				require.Equal(t, fmt.Sprint(i+1), m[1])
				if len(steps) == 0 || steps[len(steps)-1] != m[2] {
					steps = append(steps, m[2])
				}
			}
			want := []string{"node", "messenger", "node", "arena", "device", "store", "done"}
			if device == "tcp" {
				want = []string{"node", "messenger", "node", "arena", "store", "done"}
			}
			require.Equal(t, want, steps, log)
			require.Contains(t, log, "posted 0, held 0,")

			p = startNode(t, dir, listen(device)...)
			for i := range clients {
				require.True(t, string(data) == ok(t, nil, to(p, "get", fmt.Sprintf("load/%d", i), "-")...))
			}
		})
	}
}
