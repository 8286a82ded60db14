package buffer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// mmap maps memory that the test unmaps.
func mmap(t *testing.T, fd int, off int64, n, prot, flags int) []byte {
	t.Helper()
	mem, err := unix.Mmap(fd, off, n, prot, flags)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	return mem
}

const rw = unix.PROT_READ | unix.PROT_WRITE

func anon(t *testing.T, n int) []byte {
	return mmap(t, -1, 0, n, rw, unix.MAP_PRIVATE|unix.MAP_ANON)
}

func memfd(t *testing.T, n int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "memfd")
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	require.NoError(t, f.Truncate(int64(n)))
	return f
}

func newCache(t *testing.T, cfg RegCacheConfig) *RegCache {
	t.Helper()
	c, err := NewRegCache(cfg)
	require.NoError(t, err)
	return c
}

// closeCache is to be deferred: it comes before mmap's memory goes.
func closeCache(t *testing.T, c *RegCache) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // of a test that has failed
	defer cancel()
	require.NoError(t, c.Close(ctx))
	require.Equal(t, RegCacheStats{FreePieces: c.cfg.MaxPieces, Hits: c.hits, Misses: c.misses, Evicted: c.evicted}, c.Stats())
}

func mustRegister(t *testing.T, m *Memory, acc verbs.Access) *Registration {
	t.Helper()
	r, err := m.Register(context.Background(), acc)
	require.NoError(t, err)
	return r
}

func TestMemoryIsReused(t *testing.T) {
	verbstest.NoLeaks(t)
	pd := openPD(t, iwarp.Config{}, &verbstest.Script{})
	c := newCache(t, RegCacheConfig{PDs: []*verbs.PD{pd}, MaxIdle: 2})
	defer closeCache(t, c)
	var ms []*Memory
	for range 4 {
		m, err := c.Add(anon(t, 10*Page))
		require.NoError(t, err)
		ms = append(ms, m)
	}
	require.Zero(t, regions(pd), "nothing is registered yet")
	r := mustRegister(t, ms[0], verbs.AccessLocalWrite)
	require.False(t, r.Cached())
	gen := r.Generation()
	r.Close()
	r.Close()
	require.Equal(t, 1, regions(pd))
	r = mustRegister(t, ms[0], verbs.AccessLocalWrite)
	require.True(t, r.Cached())
	require.Equal(t, gen, r.Generation())
	old := r.List()
	b := old.At(0)
	old.Release()
	r.Close()
	for _, m := range ms[1:] {
		mustRegister(t, m, verbs.AccessLocalWrite).Close()
	}
	require.Equal(t, 2, regions(pd), "the two used last")
	require.EqualValues(t, 2, c.Stats().Evicted)
	r = mustRegister(t, ms[0], verbs.AccessLocalWrite)
	require.False(t, r.Cached(), "it was used least recently")
	require.NotEqual(t, gen, r.Generation())
	require.Panics(t, func() { b.Bytes() }, "a handle of the earlier registration")
	r.Close()
	// Other rights are another registration.
	r = mustRegister(t, ms[0], 0)
	require.False(t, r.Cached())
	require.Zero(t, (*c.a.attachments.Load())[0].regs[r.e.slots[0]].mr.Load().Access())
	r.Close()
	_, err := ms[0].Register(context.Background(), verbs.AccessRemoteRead)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "use RDMABuffer.Grant")
}

// What a failed Register could not deregister again is given up by the next one,
// or by Close.
func TestMemoryIsNotRolledBack(t *testing.T) {
	verbstest.NoLeaks(t)
	broken := errors.New("broken")
	ctx := context.Background()
	for name, again := range map[string]bool{"close": false, "register": true} {
		t.Run(name, func(t *testing.T) {
			var mended atomic.Bool
			faulty := func(op verbstest.Op) *verbstest.Script {
				return &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
					if c.Op == op && !mended.Load() {
						return verbstest.Fault{Err: broken}
					}
					return verbstest.Fault{}
				}}
			}
			x, y := openPD(t, iwarp.Config{}, faulty(verbstest.CallDeregister)), openPD(t, iwarp.Config{}, faulty(verbstest.CallRegMR))
			c := newCache(t, RegCacheConfig{PDs: []*verbs.PD{x, y}, MaxPieces: 2})
			mem := anon(t, 2*Page)
			defer closeCache(t, c)
			m, err := c.Add(mem)
			require.NoError(t, err)
			_, err = m.Register(ctx, 0)
			require.ErrorContains(t, err, "and not deregistered again")
			require.Equal(t, 1, regions(x))
			require.Equal(t, 1, c.Stats().FreePieces)
			if again {
				_, err = m.Register(ctx, 0)
				require.ErrorIs(t, err, broken)
				require.Equal(t, 1, regions(x))
				mended.Store(true)
				r := mustRegister(t, m, 0)
				require.False(t, r.Cached())
				require.Equal(t, 1, regions(x))
				require.Equal(t, 1, regions(y))
				r.Close()
			} else {
				var leak *LeakError
				require.ErrorAs(t, m.Close(ctx), &leak)
				mended.Store(true)
			}
			require.NoError(t, m.Close(ctx))
			require.Zero(t, regions(x))
		})
	}
}

func TestMemoryInUseStays(t *testing.T) {
	verbstest.NoLeaks(t)
	pd := openPD(t, iwarp.Config{}, &verbstest.Script{})
	c := newCache(t, RegCacheConfig{PDs: []*verbs.PD{pd}, MaxIdle: -1})
	defer closeCache(t, c)
	m, err := c.Add(anon(t, Page))
	require.NoError(t, err)
	r := mustRegister(t, m, 0)
	l := r.List()
	l.RetainPosted()
	r.Close()
	require.Equal(t, 1, regions(pd), "the list has it")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err = m.Close(ctx)
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, 2, leak.Holders[0].Refs)
	require.Equal(t, 1, leak.Holders[0].Posted)
	require.EqualValues(t, Page, leak.Quarantined)
	require.ErrorContains(t, err, "memory not closed: 4096 bytes have to stay mapped")
	_, err = m.Register(context.Background(), 0)
	require.ErrorIs(t, err, ErrClosed)
	closed := make(chan error)
	go func() { closed <- m.Close(context.Background()) }() // ends with the last reference
	b := l.At(0)
	l.Release()
	select {
	case err := <-closed:
		t.Fatal("closed under posted work", err)
	case <-time.After(10 * time.Millisecond):
	}
	b.ReleasePosted()
	require.NoError(t, <-closed)
	require.Zero(t, regions(pd))
	require.NoError(t, m.Close(context.Background()))
}

func TestMemoryIsSplit(t *testing.T) {
	verbstest.NoLeaks(t)
	x, y := openPD(t, iwarp.Config{MaxMRSize: 5*Page + 7}, &verbstest.Script{}), openPD(t, iwarp.Config{}, &verbstest.Script{})
	c := newCache(t, RegCacheConfig{PDs: []*verbs.PD{x, y}})
	defer closeCache(t, c)
	all := anon(t, 20*Page)
	mem := all[100 : 12*Page+300] // unaligned at both ends
	for i := range mem {
		mem[i] = byte(i * 7)
	}
	m, err := c.Add(mem)
	require.NoError(t, err)
	r := mustRegister(t, m, verbs.AccessLocalWrite)
	l := r.List()
	require.EqualValues(t, len(mem), l.Len())
	require.Equal(t, 3, l.Segments())
	require.Equal(t, 3, regions(x))
	require.Equal(t, 3, regions(y))
	got := make([]byte, len(mem))
	require.Equal(t, len(mem), l.CopyTo(got))
	require.Equal(t, mem, got)
	at := m.addr()
	for _, pd := range []*verbs.PD{x, y} {
		at = m.addr()
		for _, e := range l.SGEs(nil, pd) {
			require.Equal(t, at, e.MR.Addr()+e.Offset)
			require.EqualValues(t, e.MR.Length(), e.Length, "no byte beside the memory")
			at += uint64(e.Length)
		}
	}
	require.Equal(t, m.addr()+m.size(), at)
	l.Release()
	r.Close()
	small := newCache(t, RegCacheConfig{PDs: []*verbs.PD{x}, MaxPieces: 2})
	defer closeCache(t, small)
	m, err = small.Add(mem)
	require.NoError(t, err)
	_, err = m.Register(context.Background(), 0)
	require.ErrorIs(t, err, ErrExhausted)
	require.ErrorContains(t, err, "3 pieces of memory are wanted, 2 are left")
}

// A device without room for more gets it from registrations that nobody uses;
// one that still refuses leaves nothing behind.
func TestMemoryRegistrationRollsBack(t *testing.T) {
	verbstest.NoLeaks(t)
	x, y := openPD(t, iwarp.Config{}, &verbstest.Script{}), openPD(t, iwarp.Config{MaxPages: 10, MaxMRSize: 4 * Page}, &verbstest.Script{})
	c := newCache(t, RegCacheConfig{PDs: []*verbs.PD{x, y}})
	defer closeCache(t, c)
	a, err := c.Add(anon(t, 8*Page))
	require.NoError(t, err)
	b, err := c.Add(anon(t, 8*Page))
	require.NoError(t, err)
	mustRegister(t, a, 0).Close()
	r := mustRegister(t, b, 0)
	require.EqualValues(t, 1, c.Stats().Evicted)
	_, err = a.Register(context.Background(), 0)
	require.ErrorIs(t, err, verbs.ErrLimit)
	var be *BatchError
	require.ErrorAs(t, err, &be)
	require.True(t, be.RolledBack)
	require.Len(t, be.Results, 4)
	require.Equal(t, 2, regions(x))
	require.Equal(t, 2, regions(y))
	r.Close()
	mustRegister(t, a, 0).Close()
}

func TestKindsOfMemory(t *testing.T) {
	verbstest.NoLeaks(t)
	pd := openPD(t, iwarp.Config{}, &verbstest.Script{})
	c := newCache(t, RegCacheConfig{PDs: []*verbs.PD{pd}})
	defer closeCache(t, c)
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("data"), Page), 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	fd := int(f.Fd())
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &st))
	onDisk := st.Type != unix.TMPFS_MAGIC
	mfd := int(memfd(t, 4*Page).Fd())
	for name, k := range map[string]struct {
		mem   []byte
		write string // why not
	}{
		"anonymous":        {mem: anon(t, 4*Page)},
		"shared anonymous": {mem: mmap(t, -1, 0, 4*Page, rw, unix.MAP_SHARED|unix.MAP_ANON)},
		"memfd":            {mem: mmap(t, mfd, 0, 4*Page, rw, unix.MAP_SHARED)},
		"private file":     {mem: mmap(t, fd, 0, 4*Page, rw, unix.MAP_PRIVATE)},
		"read-only":        {mem: mmap(t, mfd, Page, 2*Page, unix.PROT_READ, unix.MAP_SHARED), write: "it is mapped read-only"},
		"file":             {mem: mmap(t, fd, 0, 4*Page, rw, unix.MAP_SHARED), write: "since Linux 6.5 the kernel refuses"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "read-only" {
				env.UserSpace(t, "before Linux 6.2 the kernel pins a shared mapping for writing, whatever it is registered for")
			}
			m, err := c.Add(k.mem)
			require.NoError(t, err)
			r := mustRegister(t, m, 0)
			l := r.List()
			require.Equal(t, k.mem[:10], l.At(0).Bytes()[:10])
			l.Release()
			r.Close()
			r, err = m.Register(context.Background(), verbs.AccessLocalWrite)
			if k.write == "" || name == "file" && !onDisk {
				require.NoError(t, err)
				r.Close()
				return
			}
			var me *MappingError
			require.ErrorAs(t, err, &me)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, k.write)
			require.ErrorContains(t, err, "register it without AccessLocalWrite")
		})
	}
	_, err = c.Add(nil)
	require.ErrorIs(t, err, ErrInvalid)
	hole := anon(t, 3*Page)
	require.NoError(t, unix.Mprotect(hole[Page:2*Page], unix.PROT_NONE))
	_, err = c.Add(hole)
	require.ErrorContains(t, err, "without PROT_READ")
	gone, err := unix.MmapPtr(-1, 0, nil, Page, rw, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	mem := sliceAt(gone, Page)
	require.NoError(t, unix.MunmapPtr(gone, Page))
	_, err = c.Add(mem)
	require.ErrorContains(t, err, "it is not mapped")
	heap := make([]byte, 100<<10)
	_, err = c.Add(heap)
	require.ErrorContains(t, err, "AddPinned")
	_, err = c.Add(make([]byte, 64))
	require.ErrorContains(t, err, "AddPinned")
	m, err := c.AddPinned(heap)
	require.NoError(t, err)
	mustRegister(t, m, verbs.AccessLocalWrite).Close()
	require.NoError(t, m.Check())
	require.NoError(t, m.Close(context.Background()))
}

// Huge pages are registered, sent from and received into.
func TestHugeTLB(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, hugePage, rw, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
	if err != nil {
		t.Skipf("the system has no 2 MiB pages in its pool (vm.nr_hugepages): %v", err)
	}
	defer func() { require.NoError(t, unix.Munmap(mem)) }()
	x, y := connect(t)
	cx, cy := newCache(t, RegCacheConfig{PDs: []*verbs.PD{x.pd}}), newCache(t, RegCacheConfig{PDs: []*verbs.PD{y.pd}})
	defer closeCache(t, cx)
	defer closeCache(t, cy)
	src, dst := mem[:hugePage/2], mem[hugePage/2:]
	for i := range src {
		src[i] = byte(i * 13 >> 3)
	}
	mx, err := cx.Add(src)
	require.NoError(t, err)
	my, err := cy.Add(dst)
	require.NoError(t, err)
	rx, ry := mustRegister(t, mx, 0), mustRegister(t, my, verbs.AccessLocalWrite)
	lx, ly := rx.List(), ry.List()
	ly.RetainPosted()
	_, err = y.qp.PostRecv([]verbs.RecvWR{{SGEs: ly.SGEs(nil, y.pd)}})
	require.NoError(t, err)
	lx.RetainPosted()
	x.send(verbs.SendWR{Opcode: verbs.OpSend, SGEs: lx.SGEs(nil, x.pd)})
	require.Equal(t, verbs.StatusSuccess, y.poll().Status)
	ly.ReleasePosted()
	require.Equal(t, verbs.StatusSuccess, x.poll().Status)
	lx.ReleasePosted()
	require.True(t, bytes.Equal(src, dst))
	lx.Release()
	ly.Release()
	rx.Close()
	ry.Close()
}

// What its owner does to memory under a live registration is found.
func TestMemoryChangesUnderRegistration(t *testing.T) {
	pd := openPD(t, iwarp.Config{}, &verbstest.Script{})
	pinning := openPD(t, iwarp.Config{Pin: true}, &verbstest.Script{})
	file := memfd(t, 4*Page)
	for name, k := range map[string]struct {
		pd     *verbs.PD
		mem    func(t *testing.T) []byte
		change func(t *testing.T, mem []byte)
		says   string
	}{
		"unmapped": {pd, func(t *testing.T) []byte { return anon(t, 4*Page) }, func(t *testing.T, mem []byte) {
			require.NoError(t, unix.MunmapPtr(ptr(mem[Page:]), Page))
		}, "it is not mapped"},
		"remapped": {pd, func(t *testing.T) []byte { return anon(t, 4*Page) }, func(t *testing.T, mem []byte) {
			_, err := unix.MmapPtr(int(file.Fd()), 0, ptr(mem[Page:]), Page, rw, unix.MAP_SHARED|unix.MAP_FIXED)
			require.NoError(t, err)
		}, "something else is mapped there now"},
		"truncated": {pd, func(t *testing.T) []byte { return mmap(t, int(memfd2(t)), 0, 4*Page, rw, unix.MAP_SHARED) }, func(t *testing.T, mem []byte) {
			require.NoError(t, unix.Ftruncate(lastMemfd, 2*Page))
		}, "truncat"},
		"discarded": {pinning, func(t *testing.T) []byte { return anon(t, 4*Page) }, func(t *testing.T, mem []byte) {
			if err := unix.Madvise(mem[2*Page:3*Page], 24); err != nil { // MADV_DONTNEED_LOCKED
				t.Skip("this kernel does not discard locked memory: ", err)
			}
		}, "discarded"},
	} {
		t.Run(name, func(t *testing.T) {
			mem := k.mem(t)
			c, err := NewRegCache(RegCacheConfig{PDs: []*verbs.PD{k.pd}})
			require.NoError(t, err)
			m, err := c.Add(mem)
			require.NoError(t, err)
			r := mustRegister(t, m, verbs.AccessLocalWrite)
			require.NoError(t, m.Check())
			k.change(t, mem)
			err = m.Check()
			var me *MappingError
			require.ErrorAs(t, err, &me)
			require.ErrorContains(t, err, k.says)
			if invariants {
				require.Panics(t, func() { r.List() })
				m.was = nil // the rest is for the device's sake
			}
			r.Close()
			m.was = nil
			require.NoError(t, c.Close(context.Background()))
		})
	}
}

// Memory of the caller is sent, received into and granted like any other.
func TestMemoryTransfer(t *testing.T) {
	verbstest.NoLeaks(t)
	x, y := connect(t)
	needKeys(t, x)
	cx, cy := newCache(t, RegCacheConfig{PDs: []*verbs.PD{x.pd}}), newCache(t, RegCacheConfig{PDs: []*verbs.PD{y.pd}})
	defer closeCache(t, cx)
	defer closeCache(t, cy)
	src, dst := anon(t, 3*Page), mmap(t, int(memfd(t, 3*Page).Fd()), 0, 3*Page, rw, unix.MAP_SHARED)
	for i := range src {
		src[i] = byte(i * 13)
	}
	mx, err := cx.Add(src[5 : 2*Page+5])
	require.NoError(t, err)
	my, err := cy.Add(dst[7 : 2*Page+7])
	require.NoError(t, err)
	rx, ry := mustRegister(t, mx, 0), mustRegister(t, my, verbs.AccessLocalWrite)
	lx, ly := rx.List(), ry.List()
	g, err := lx.At(0).Grant(x.qp, verbs.AccessRemoteRead)
	require.NoError(t, err)
	ly.RetainPosted()
	_, err = y.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGEs: ly.SGEs(nil, y.pd), RemoteAddr: g.Addr(), RKey: g.RKey(),
	}})
	require.NoError(t, err)
	require.Equal(t, verbs.StatusSuccess, y.poll().Status)
	ly.ReleasePosted()
	require.Equal(t, src[5:2*Page+5], dst[7:2*Page+7])
	require.Zero(t, dst[6])
	require.Zero(t, dst[2*Page+7])
	require.NoError(t, g.Revoke())
	_, err = lx.At(0).Grant(x.qp, verbs.AccessRemoteWrite)
	require.ErrorIs(t, err, verbs.ErrInvalid, "it was registered for reading")
	lx.Release()
	ly.Release()
	rx.Close()
	ry.Close()
}

var lastMemfd int

func memfd2(t *testing.T) uintptr {
	f := memfd(t, 4*Page)
	lastMemfd = int(f.Fd())
	return f.Fd()
}

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func sliceAt(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }

// Without a PD memory is for streams.
func TestMemoryWithoutPD(t *testing.T) {
	c := newCache(t, RegCacheConfig{})
	defer closeCache(t, c)
	mem := anon(t, 2*Page)
	m, err := c.Add(mem)
	require.NoError(t, err)
	r := mustRegister(t, m, 0)
	l := r.List()
	mem[5] = 9
	require.EqualValues(t, 9, l.At(0).Bytes()[5])
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	var leak *LeakError
	require.ErrorAs(t, m.Close(short), &leak)
	require.Len(t, leak.Holders, 2)
	l.Release()
	r.Close()
}
