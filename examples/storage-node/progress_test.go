package main

import (
	"bytes"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is no terminal never gets a bar, however long it takes.
func TestProgressOfNoTerminal(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b, "k")
	p.start = p.start.Add(-2 * progressAfter)
	p.update(50, 100)
	p.finish()
	require.Empty(t, b.String())

	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	require.Nil(t, newProgress(w, "k").out)
}

// A terminal gets a bar when the transfer has taken a second.
func TestProgress(t *testing.T) {
	for _, total := range []int64{100, -1} {
		var b bytes.Buffer
		p := &progress{out: &b, name: "backup/monday", start: time.Now()}
		p.update(10, total)
		p.finish()
		require.Empty(t, b.String())

		p.start = p.start.Add(-2 * progressAfter)
		p.update(50, total)
		require.Contains(t, b.String(), "backup/monday")
		p.finish()
	}
}

func TestProgressKnowsTerminals(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks for a Linux terminal")
	}
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminal to be had: ", err)
	}
	defer f.Close()
	require.Equal(t, f, newProgress(f, "k").out)
}
