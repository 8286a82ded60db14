//go:build !invariants

package messenger

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// With the invariants tag package buffer finds out first that the pages are gone, and
// panics: it is the owner's fault.

// Payload of a mapped file that is cut before it has been sent: the message alone is
// given up, in the middle of its frame; who waits for it and the peer know, and what
// is behind it arrives on the same transport.
func TestUnreadablePayload(t *testing.T) {
	for _, left := range []int64{100 << 10, 4 << 10, 0} {
		t.Run(fmt.Sprintf("%d bytes left", left), func(t *testing.T) { unreadablePayload(t, left) })
	}
}

func unreadablePayload(t *testing.T, left int64) {
	got := make(chan uint16, 8)
	// Neither checksums nor secure mode: this process would read it, and get SIGBUS.
	plain := Config{NoDataCRC: true, Transports: []Transport{}, Auth: []Auth{AuthNone{}}, Modes: []Mode{ModeCRC}}
	cfg := plain
	cfg.Name = EntityName{OSD, 0}
	server := newMessenger(t, cfg)
	server.SetPolicy(Client, StatefulServer())
	server.AddDispatcher(collect(got))
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	client := newMessenger(t, plain)
	client.SetPolicy(OSD, LosslessClient())
	cache, err := client.NewRegCache(buffer.RegCacheConfig{})
	require.NoError(t, err)

	const size = 1 << 20
	name := filepath.Join(t.TempDir(), "object")
	data := make([]byte, size)
	rand.Read(data)
	require.NoError(t, os.WriteFile(name, data, 0o600))
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	file, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(file)) })
	mem, err := cache.Add(file)
	require.NoError(t, err)
	reg, err := mem.Register(soon(t), 0)
	require.NoError(t, err)
	payload := func(typ uint16) *Message {
		m := NewMessage(typ)
		m.Data = reg.List()
		return m
	}

	c, err := client.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	require.NoError(t, c.Ready(soon(t)))
	require.NoError(t, c.Send(soon(t), payload(1)))
	require.EqualValues(t, 1, receiveOne(t, got, "message"))
	require.NoError(t, os.Truncate(name, left))
	require.NoError(t, c.Send(soon(t), payload(2)))
	sendTypes(t, c, 3)
	require.EqualValues(t, 3, receiveOne(t, got, "message"))
	call := payload(4)
	_, err = c.Call(soon(t), call)
	require.ErrorIs(t, err, ErrUnreadable)
	call.Release()
	sendTypes(t, c, 5)
	require.EqualValues(t, 5, receiveOne(t, got, "message"))

	require.Zero(t, c.Stats().Reconnects)
	require.EqualValues(t, 2, c.Stats().Undelivered)
	require.EqualValues(t, 2, client.Stats().Dropped)
	s := server.Stats()
	require.EqualValues(t, 3, s.MessagesReceived)
	require.EqualValues(t, 2, s.Skipped)
	require.Zero(t, s.ProtocolErrors+s.ChecksumErrors)
	require.Eventually(t, func() bool { return c.Stats().UnackedMessages == 0 }, patience, time.Millisecond)
	reg.Close()
	require.NoError(t, mem.Close(soon(t)))
	require.NoError(t, cache.Close(soon(t)))
}
