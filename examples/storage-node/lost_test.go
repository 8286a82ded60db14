package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A node whose device is lost says so, in its log and to who asks it over a carrier that is left; it serves those, refuses
// others, and shuts down as ever.
func TestDeviceLost(t *testing.T) {
	f := verbstest.NewFaulty(env.OpenDriver(t), nil)
	log, level := new(lines), new(slog.LevelVar)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	p := &program{ctx: ctx, stdout: io.Discard, log: slog.New(slog.NewTextHandler(log, nil)), level: level}
	s, err := startServer(ctx, serverConfig{
		dir: t.TempDir(), listen: env.ListenAddr() + ",tcp://127.0.0.1:0", device: adapter, arena: 32 << 20, log: p.log, level: level,
		open: func() (*verbs.Device, error) { return verbs.NewDevice(f, verbs.Config{}) },
	})
	require.NoError(t, err)
	watched := make(chan struct{})
	go func() { // ends with ctx
		defer close(watched)
		s.watch(p)
	}()
	rdma, tcp := s.addrs()[0].URL, s.addrs()[1].URL
	require.True(t, strings.HasPrefix(tcp, "tcp://"), tcp)
	ok(t, strings.NewReader("x"), "put", "--device", adapter, "--server", rdma, "k", "-")
	require.Regexp(t, `device +`+adapter+"\n", ok(t, nil, "stat", "--device", "tcp", "--server", tcp))

	f.Inject(driver.Event{Type: driver.EventDeviceFatal})
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "device lost: ") }, patience, time.Millisecond)
	require.Contains(t, ok(t, nil, "stat", "--device", "tcp", "--server", tcp), adapter+" (lost)\n")
	require.Equal(t, "x", ok(t, nil, "get", "--device", "tcp", "--server", tcp, "k", "-"))
	fails(t, nil, "get", "--device", adapter, "--server", rdma, "--timeout", "2s", "k", "-")

	stop()
	<-watched
	require.NoError(t, s.shutdown(ctx, 0, func(string) {}))
}
