package msgr2

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	recorded = flag.String("recorded", "", "directory with more recordings (*.bin.gz) that TestGoldenCaptures decodes")
	rewrite  = flag.Bool("rewrite", false, "write testdata/*.txt from what the tests decode")
)

// The captures are what Ceph 16.2's monitor and ceph program (mon), the OSD and
// this messenger (osd), this messenger and the monitor (ours), and the ceph program
// and this messenger (ceph) sent each other over TCP, without authentication;
// test/interop/ceph records them.
// Each must decode to its last byte, and encode again to the same bytes. The
// text beside it lists the frames.
func TestGoldenCaptures(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bin.gz")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		name := strings.TrimSuffix(file, ".bin.gz")
		t.Run(filepath.Base(name), func(t *testing.T) {
			list := recodeFile(t, file)
			if *rewrite {
				require.NoError(t, os.WriteFile(name+".txt", []byte(list), 0o644))
			}
			want, err := os.ReadFile(name + ".txt")
			require.NoError(t, err)
			require.Equal(t, string(want), list)
		})
	}
	if *recorded == "" {
		return
	}
	files, err = filepath.Glob(filepath.Join(*recorded, "*.bin.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run("recorded/"+filepath.Base(file), func(t *testing.T) { t.Log("\n" + recodeFile(t, file)) })
	}
}

// recodeFile decodes a recording and encodes it again to the same bytes. It
// returns a list of the frames.
func recodeFile(t *testing.T, file string) string {
	t.Helper()
	capture := gunzip(t, file)
	require.NotEmpty(t, capture)
	var again []byte
	var list strings.Builder
	for rest := capture; len(rest) > 0; {
		var n int
		var line string
		again, line, n = recode(t, again, rest, len(rest) == len(capture))
		fmt.Fprintln(&list, line)
		rest = rest[n:]
	}
	require.Equal(t, capture, again, "encoding again gives other bytes")
	return list.String()
}

// recode decodes what rest starts with (the banner when first), appends its
// own encoding to dst, and returns a line about it and its length.
func recode(t *testing.T, dst, rest []byte, first bool) ([]byte, string, int) {
	t.Helper()
	if first {
		var b Banner
		require.NoError(t, b.Decode(rest))
		return b.Append(dst), fmt.Sprintf("BANNER supported=%#x required=%#x", b.Supported, b.Required), BannerLen
	}
	var p Preamble
	require.NoError(t, p.Decode(rest, Limits{}))
	total := int(p.WireLen())
	require.GreaterOrEqual(t, len(rest), total, "the capture ends inside a %v", p.Tag)
	in := rest[PreambleLen:total]
	zero, err := p.CheckSegZero(in[:p.SegZeroLen()])
	require.NoError(t, err)
	in = in[p.SegZeroLen():]
	if p.Tag != TagMessage {
		f := New(p.Tag)
		require.NoError(t, f.Decode(zero))
		return AppendControl(dst, f), fmt.Sprintf("%v %+v", p.Tag, deref(f)), total
	}
	var h Header
	require.NoError(t, h.Decode(zero))
	var segs [MaxSegments][]byte
	for i := SegFront; i < MaxSegments; i++ {
		segs[i], in = in[:p.Segs[i].Len], in[p.Segs[i].Len:]
	}
	if p.EpilogueLen() > 0 {
		var e Epilogue
		require.NoError(t, e.Decode(in))
		require.False(t, e.Aborted)
		for i := SegFront; i < int(p.Num); i++ {
			require.NoError(t, e.Check(i, CRC(CRCSeed, segs[i])))
		}
	}
	dst, q, e := AppendMessageHead(dst, &h, segs[SegFront], segs[SegMiddle], len(segs[SegData]))
	dst = append(dst, segs[SegData]...)
	dst = AppendMessageTail(dst, &q, e, CRC(CRCSeed, segs[SegData]))
	return dst, fmt.Sprintf("MESSAGE %+v front=%d middle=%d data=%d", h,
		len(segs[SegFront]), len(segs[SegMiddle]), len(segs[SegData])), total
}

// deref prints a frame's fields without the pointer.
func deref(f Frame) any {
	switch f := f.(type) {
	case *Hello:
		return *f
	case *AuthRequest:
		return *f
	case *AuthDone:
		return *f
	case *AuthSignature:
		return *f
	case *ClientIdent:
		return *f
	case *ServerIdent:
		return *f
	case *SessionReconnect:
		return *f
	case *SessionReset:
		return *f
	case *Keepalive2:
		return *f
	case *Keepalive2Ack:
		return *f
	case *Ack:
		return *f
	}
	return f
}

func gunzip(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	z, err := gzip.NewReader(bytes.NewReader(b))
	require.NoError(t, err)
	out, err := io.ReadAll(z)
	require.NoError(t, err)
	return out
}
