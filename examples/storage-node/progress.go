package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progressAfter is how long a transfer takes before a bar is shown.
const progressAfter = time.Second

// progress shows a bar on a terminal, for transfers that take their time. Its zero value shows nothing.
type progress struct {
	out   io.Writer // nil: not a terminal
	name  string
	start time.Time
	bar   *progressbar.ProgressBar
}

// newProgress makes one that shows itself on stderr if that is a terminal.
func newProgress(stderr io.Writer, name string) *progress {
	p := &progress{name: name, start: time.Now()}
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.out = stderr
	}
	return p
}

// update says that done of total bytes are through; total is -1 where it is not known.
func (p *progress) update(done, total int64) {
	if p.out == nil || p.bar == nil && time.Since(p.start) < progressAfter {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(p.out),
			progressbar.OptionSetDescription(p.name),
			progressbar.OptionShowBytes(true),
			progressbar.OptionShowTotalBytes(true),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
	_ = p.bar.Set64(done) // a terminal that can not be written to is no reason to stop
}

// finish takes the bar away.
func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
