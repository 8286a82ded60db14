//go:build unix

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

var serving = regexp.MustCompile(`msg=serving .*?(tcp://[^\s,"]+)`)

// What the node logs about who is none of its clients, by the port that it came to: from where, and why not.
var refusal = map[string]*regexp.Regexp{
	"iwarp": regexp.MustCompile(`level=INFO msg="iwarp: refused a connection" remote=127\.0\.0\.1:\d+ error=".+" suppressed=\d+`),
	"tcp":   regexp.MustCompile(`level=INFO msg="handshake failed" .*127\.0\.0\.1:\d+.* err=.+`),
}

// Whatever comes in on a port, the node closes that connection in time, says nothing that hurts, says why in its log, and
// goes on.
func TestGarbage(t *testing.T) {
	t.Parallel()
	frame4G := append([]byte("ceph v2\n\x10\x00"), make([]byte, 16)...) // banner without features, then a preamble
	preamble := make([]byte, 32)
	preamble[0], preamble[1] = 1, 1
	binary.LittleEndian.PutUint32(preamble[2:], 0xffffffff)
	frame4G = append(frame4G, preamble...)
	mpa := func(key string, flags byte, length uint16, private []byte) []byte {
		b := append([]byte(key), flags, 1, byte(length>>8), byte(length))
		return append(b, private...)
	}
	inputs := map[string][]byte{
		"silence":           nil,
		"one byte":          {0},
		"zeros":             make([]byte, 4096),
		"random":            mustRead("/dev/urandom", 100_000),
		"http":              []byte("GET / HTTP/1.1\r\nHost: node\r\n\r\n"),
		"half an MPA key":   []byte("MPA ID R"),
		"MPA, wrong key":    mpa("MPA ID Req frame", 0x40, 0, nil),
		"MPA, 64 KiB":       mpa("MPA ID Req Frame", 0x40, 65535, make([]byte, 65535)),
		"MPA, no hello":     mpa("MPA ID Req Frame", 0x40, 0, nil),
		"MPA, wrong hello":  mpa("MPA ID Req Frame", 0x40, 40, bytes.Repeat([]byte{0xee}, 40)),
		"MPA, revision 77":  append([]byte("MPA ID Req Frame"), 0x40, 77, 0, 0),
		"MPA, markers":      mpa("MPA ID Req Frame", 0xc0, 0, nil),
		"half a banner":     []byte("ceph v"),
		"old ceph":          []byte("ceph v027\n"),
		"banner, 64 KiB":    append([]byte("ceph v2\n\xff\xff"), make([]byte, 65535)...),
		"frame of 4 GiB":    frame4G,
		"banner and random": append(append([]byte("ceph v2\n\x10\x00"), make([]byte, 16)...), mustRead("/dev/urandom", 4096)...),
	}
	p := startNode(t, t.TempDir(), "--listen", "iwarp://127.0.0.1:0,tcp://127.0.0.1:0", "--arena", "64MiB")
	tcp := p.lineAfter(0, serving)[1]
	ok(t, strings.NewReader("before"), to(p, "put", "k", "-")...)
	// All at once, since some have to wait for a deadline.
	var g errgroup.Group
	for _, addr := range []string{p.addr, tcp} {
		scheme, hostport, _ := strings.Cut(addr, "://")
		for name, input := range inputs {
			g.Go(func() error {
				if err := sendGarbage(hostport, input); err != nil {
					return fmt.Errorf("%s, %s: %w", scheme, name, err)
				}
				return nil
			})
		}
	}
	require.NoError(t, g.Wait())
	require.Equal(t, "before", ok(t, nil, to(p, "get", "k", "-")...))
	require.Equal(t, "before", ok(t, nil, "get", "--server", tcp, "k", "-"))
	requireAbandoned(t, p)
	log := p.log()
	require.NotContains(t, log, "panic")
	for scheme, line := range refusal {
		require.Regexp(t, line, log, scheme)
	}
}

// unprivileged is a command that runs this program as somebody who may nothing, and a directory that is theirs to write.
func unprivileged(t *testing.T, args ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "storage-node-test-") // what t.TempDir makes is root's alone
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	cmd = command(args...)
	exe, err := os.ReadFile(cmd.Path)
	require.NoError(t, err)
	cmd.Path = filepath.Join(dir, "storage-node") // a copy, which they can reach
	require.NoError(t, os.WriteFile(cmd.Path, exe, 0o755))
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	return cmd, dir
}

// sendGarbage sends input and waits for the other end to close the connection.
func sendGarbage(hostport string, input []byte) error {
	c, err := net.Dial("tcp", hostport)
	if err != nil {
		return err
	}
	defer c.Close()
	// The other end may reset before it has read everything.
	if _, err := c.Write(input); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(15 * time.Second)); err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, c)
	switch {
	case err != nil && !errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("the node should have closed the connection: %w", err)
	case n > 4096:
		return fmt.Errorf("the node sent %d bytes", n)
	}
	return nil
}

func mustRead(path string, n int) []byte {
	f, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := io.ReadFull(f, b); err != nil {
		panic(err)
	}
	return b
}

// What a user can do wrong, or finds wrong, gets words that help, and loses nothing.
func TestWrong(t *testing.T) {
	dir := t.TempDir()
	p := startNode(t, dir, listen(adapter)...)
	in := randomFile(t, 300_000)
	ok(t, nil, to(p, "put", "k", in)...)
	out := filepath.Join(t.TempDir(), "out")
	require.NoError(t, os.WriteFile(out, []byte("what was there"), 0o600))

	t.Run("missing key", func(t *testing.T) {
		require.Contains(t, fails(t, nil, to(p, "get", "missing", out)...), "no such object")
	})
	t.Run("bad key", func(t *testing.T) {
		require.Contains(t, fails(t, nil, to(p, "put", "a\nb", in)...), "control character")
		require.Contains(t, fails(t, nil, to(p, "put", strings.Repeat("k", 1025), in)...), "invalid key")
		require.Contains(t, fails(t, nil, to(p, "get", "", out)...), "invalid key")
	})
	t.Run("files", func(t *testing.T) {
		require.Contains(t, fails(t, nil, to(p, "put", "k", filepath.Join(dir, "none"))...), "no such file")
		require.Contains(t, fails(t, nil, to(p, "put", "k", dir)...), "is a directory")
		require.Contains(t, fails(t, nil, to(p, "get", "k", filepath.Join(dir, "none", "out"))...), "no such file")
	})
	t.Run("unreadable file", func(t *testing.T) {
		put, dir := unprivileged(t)
		secret := filepath.Join(dir, "secret")
		require.NoError(t, os.WriteFile(secret, nil, 0o000))
		put.Args = append(put.Args, to(p, "put", "k", secret)...)
		out, err := put.CombinedOutput()
		require.Error(t, err)
		require.Equal(t, exitError, put.ProcessState.ExitCode(), "%s", out)
		require.Contains(t, string(out), "storage-node: error: ")
		require.Contains(t, string(out), "permission denied")
		require.NotContains(t, string(out), "goroutine ")
	})
	t.Run("what is no regular file stays what it is", func(t *testing.T) {
		there := t.TempDir()
		require.Contains(t, fails(t, nil, to(p, "get", "k", there)...), "is a directory")
		fifo := filepath.Join(there, "fifo")
		require.NoError(t, syscall.Mkfifo(fifo, 0o600))
		piped := make(chan []byte, 1)
		go func() { // ends with the writer
			b, _ := os.ReadFile(fifo)
			piped <- b
		}()
		ok(t, nil, to(p, "get", "k", fifo)...)
		want, err := os.ReadFile(in)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, <-piped))
		link, target := filepath.Join(there, "link"), filepath.Join(there, "target")
		require.NoError(t, os.WriteFile(target, nil, 0o600))
		require.NoError(t, os.Symlink(target, link))
		ok(t, nil, to(p, "get", "k", link)...)
		st, err := os.Lstat(link)
		require.NoError(t, err)
		require.NotZero(t, st.Mode()&os.ModeSymlink)
		sameFiles(t, in, target)
	})
	t.Run("local disk full", func(t *testing.T) {
		if _, err := os.Stat("/dev/full"); err != nil {
			t.Skip("this system has no /dev/full: ", err)
		}
		msg := fails(t, nil, to(p, "get", "k", "/dev/full")...)
		require.Contains(t, msg, "no space left on device")
		require.NotContains(t, msg, "lost the connection")
		require.NotContains(t, msg, "node ", "it is not the node's")
	})
	t.Run("another transport", func(t *testing.T) {
		begin := time.Now()
		both := startNode(t, t.TempDir(), "--listen", "iwarp://127.0.0.1:0,tcp://127.0.0.1:0", "--arena", "64MiB")
		for _, addr := range []string{
			"tcp" + strings.TrimPrefix(both.addr, "iwarp"),
			"iwarp" + strings.TrimPrefix(both.lineAfter(0, serving)[1], "tcp"),
		} {
			msg := fails(t, nil, "ls", "--server", addr)
			require.Contains(t, msg, "error: connect: what listens there ends connections of this kind", addr)
			require.NotContains(t, msg, "nobody listens")
		}
		require.Less(t, time.Since(begin), 20*time.Second, "not for all of --timeout")
	})
	t.Run("nobody there", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		begin := time.Now()
		for _, scheme := range []string{"iwarp", "tcp"} {
			msg := fails(t, nil, "ls", "--server", scheme+"://"+l.Addr().String())
			require.Contains(t, msg, "nobody listens there")
			require.NotContains(t, msg, "use of closed network connection")
		}
		require.Less(t, time.Since(begin), 20*time.Second, "not for all of --timeout")
	})
	t.Run("no such host", func(t *testing.T) {
		begin := time.Now()
		require.Contains(t, fails(t, nil, "ls", "--server", "no-such-host.invalid:7000"), "no-such-host.invalid")
		require.Less(t, time.Since(begin), 20*time.Second, "the resolver's time, not --timeout's")
	})
	t.Run("bad address", func(t *testing.T) {
		begin := time.Now()
		for _, addr := range []string{"here", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:99999", "", "rdma://127.0.0.1:1"} {
			require.Contains(t, misused(t, "ls", "--server", addr), "address", addr)
			misused(t, "serve", "--data", t.TempDir(), "--listen", addr)
		}
		require.Contains(t, misused(t, "ls", "--server", ":1"), "localhost:1")
		require.Contains(t, fails(t, nil, "ls", "--server", "carrier-pigeon://127.0.0.1:1"), "no transport")
		fails(t, nil, "serve", "--data", t.TempDir(), "--listen", "carrier-pigeon://127.0.0.1:1")
		require.Less(t, time.Since(begin), 20*time.Second, "at once")
	})
	t.Run("other usage", func(t *testing.T) {
		require.Contains(t, misused(t, "serve", "--data", "", "--listen", "127.0.0.1:0"), "--data is empty")
		require.Contains(t, misused(t, to(p, "ls", "--arena", "1KiB")...), "too small")
		require.Contains(t, misused(t, to(p, "ls", "--timeout", "0s")...), "--timeout 0s")
		require.Contains(t, misused(t, to(p, "get", "k", "")...), "error: name the file to write")
	})
	t.Run("address in use", func(t *testing.T) {
		msg := fails(t, nil, "serve", "--data", t.TempDir(), "--listen", p.addr, "--device", p.device())
		require.Contains(t, msg, "address already in use")
		require.NotContains(t, msg, "shutdown", "it has not served")
	})
	t.Run("data in use", func(t *testing.T) {
		require.Contains(t, fails(t, nil, "serve", "--data", dir, "--listen", "127.0.0.1:0"), "in use by another process")
	})
	t.Run("silent node", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		for _, scheme := range []string{"iwarp", "tcp"} {
			begin := time.Now()
			require.Contains(t, fails(t, nil, "ls", "--timeout", "500ms", "--server", scheme+"://"+l.Addr().String()), "no answer within 500ms")
			require.Less(t, time.Since(begin), 20*time.Second, "at once")
		}
	})
	t.Run("tiny arena", func(t *testing.T) {
		require.Contains(t, misused(t, "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--arena", "1MiB"), "too small")
	})
	t.Run("damaged", func(t *testing.T) {
		blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "*", "*"))
		require.NoError(t, err)
		require.Len(t, blobs, 1)
		f, err := os.OpenFile(blobs[0], os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte("worm"), 200_000)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Contains(t, fails(t, nil, to(p, "get", "k", out)...), "damaged on the node's disk")
		require.Len(t, ok(t, nil, to(p, "get", "--range", "0-131071", "k", "-")...), 131072, "what is sound can be read")
		require.NoError(t, os.Remove(blobs[0]))
		require.NoError(t, os.Mkdir(blobs[0], 0o700))
		require.Contains(t, fails(t, nil, to(p, "get", "k", out)...), "can not read the object")
	})
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, "what was there", string(b), "a get that fails leaves the file alone")
	left, err := filepath.Glob(out + ".part-*")
	require.NoError(t, err)
	require.Empty(t, left)
	requireIdle(t, p, p.device())
}

// A disk that takes no more, here for the file size limit of the node's process.
func TestFull(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	cmd := exec.Command("/bin/sh", "-c", `ulimit -f 2048 && exec "$0" "$@"`, exe, "serve", "--data", dir, "--listen", "127.0.0.1:0", "--arena", "64MiB")
	cmd.Env = append(os.Environ(), "STORAGE_NODE_TEST_RUN=1")
	p := startProcess(t, cmd)
	small, big := randomFile(t, 400_000), randomFile(t, 6<<20)
	data, err := os.ReadFile(big)
	require.NoError(t, err)
	ok(t, nil, to(p, "put", "k", small)...)
	require.Contains(t, fails(t, nil, to(p, "put", "k", big)...), "no space left on the node")
	require.Contains(t, fails(t, bytes.NewReader(data), to(p, "put", "k", "-")...), "no space left on the node")
	out := filepath.Join(t.TempDir(), "out")
	ok(t, nil, to(p, "get", "k", out)...)
	sameFiles(t, small, out)
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "*", "*"))
	require.NoError(t, err)
	require.Len(t, blobs, 1)
	requireIdle(t, p, p.device())
}
