package session

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var rewrite = flag.Bool("rewrite", false, "write the expectations of testdata/*.txt from what the tests see")

// A script drives one session. Its lines:
//
//	# a sentence about what is shown
//	> an input, key=value ...
//	  what comes out (written by -rewrite), and the session afterwards
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got := runScript(t, string(want))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(want), got)
		})
	}
}

func runScript(t *testing.T, script string) string {
	var out strings.Builder
	var r scripted
	lines := bufio.NewScanner(strings.NewReader(script))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "> "):
			fmt.Fprintln(&out, line)
			fmt.Fprintf(&out, "  %s\n", r.do(t, strings.Fields(line[2:])))
		}
	}
	return out.String()
}

// scripted is the session of a script, nil for none.
type scripted struct{ s *Session }

var policies = map[string]Policy{
	"stateful_server":             {Server: true, Standby: true, ResetCheck: true},
	"stateless_server":            {Lossy: true, Server: true},
	"stateless_registered_server": {Lossy: true, Server: true, RegisterLossy: true},
	"lossless_peer":               {Standby: true},
	"lossless_peer_reuse":         {Standby: true, ResetCheck: true},
	"lossy_client":                {Lossy: true},
	"lossless_client":             {ResetCheck: true},
}

type fields map[string]string

func (f fields) has(k string) bool { _, ok := f[k]; return ok }
func (f fields) num(k string) (n uint64) {
	if v, ok := f[k]; ok {
		if _, err := fmt.Sscan(v, &n); err != nil {
			panic(err)
		}
	}
	return n
}
func (f fields) time(k string) time.Time {
	if !f.has(k) {
		return time.Time{}
	}
	d, err := time.ParseDuration(f[k])
	if err != nil {
		panic(err)
	}
	return time.Time{}.Add(d)
}
func (f fields) dur(k string) time.Duration { return f.time(k).Sub(time.Time{}) }

func (r *scripted) do(t *testing.T, words []string) string {
	f := fields{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		f[k] = v
	}
	says := func(format string, a ...any) string {
		return strings.TrimSpace(fmt.Sprintf(format, a...) + r.state())
	}
	s := r.s
	switch words[0] {
	case "none":
		r.s = nil
		return says("no session")
	case "session": // policy=, state=, client=, server=, pgs=, cs=, out=, in=, acked=, undialable
		p, ok := policies[f["policy"]]
		require.True(t, ok, "policy %q", f["policy"])
		r.s = &Session{Policy: p, Dialable: !f.has("undialable"), BackoffMin: 200 * time.Millisecond, BackoffMax: 15 * time.Second,
			ClientCookie: f.num("client"), ServerCookie: f.num("server"), PeerGlobalSeq: f.num("pgs"), ConnectSeq: f.num("cs"),
			OutSeq: f.num("out"), InSeq: f.num("in"), Acked: f.num("acked"), AckSent: f.num("in")}
		for i, n := range stateNames {
			if n == f["state"] {
				r.s.State = State(i)
				r.s.Opened = r.s.State == Open || r.s.State == Standby
			}
		}
		return says("")
	case "send":
		seq, ack := s.Send()
		return says("seq=%d ack=%d", seq, ack)
	case "resend":
		return says("ack=%d", s.Resend())
	case "receive":
		return says("%v ack_due=%v", s.Receive(f.num("seq"), f.num("ack")), s.AckDue())
	case "acked":
		s.Acknowledged(f.num("seq"))
		return says("")
	case "ack":
		return says("ACK %d", s.Ack())
	case "begin":
		o := s.Begin(f.num("gs"), f.num("cookie"))
		if o.Reconnect {
			return says("SESSION_RECONNECT cookies=%d/%d gs=%d cs=%d msg=%d", o.ClientCookie, o.ServerCookie, o.GlobalSeq, o.ConnectSeq, o.MsgSeq)
		}
		return says("CLIENT_IDENT cookie=%d gs=%d", o.ClientCookie, o.GlobalSeq)
	case "SERVER_IDENT":
		s.ServerIdent(f.num("cookie"), f.num("gs"), f.has("lossy"))
		return says("")
	case "SESSION_RECONNECT_OK":
		return says("%s", errText(s.ReconnectOK(f.num("msg"))))
	case "SESSION_RESET":
		return says("lost=%v", s.SessionReset(f.has("full")))
	case "SESSION_RETRY":
		return says("%s", errText(s.Retry(f.num("cs"))))
	case "SESSION_RETRY_GLOBAL":
		return says("%s", errText(s.RetryGlobal(f.num("gs"), f.num("most"))))
	case "WAIT":
		s.LostRace()
		return says("")
	case "fault":
		return says("%v", s.Fault(f.time("at"), f.has("queued")))
	case "wake":
		return says("connect=%v", s.Wake())
	case "taken":
		s.TakenIn()
		return says("")
	case "close":
		s.Close()
		return says("")
	case "due":
		l := Limits{Ready: f.dur("ready"), Idle: f.dur("idle"), Keepalive: f.dur("keepalive"), Silence: f.dur("silence")}
		return l.At(f.time("now"), Times{Made: f.time("made"), Received: f.time("received"), Used: f.time("used"),
			Asked: f.time("asked"), Ready: !f.has("handshake"), Holding: f.has("holding")}).String()
	case "CLIENT_IDENT", "SESSION_RECONNECT": // policy=, cookie= or cookies, gs=, cs=, msg=, lossy, peer_first
		in := Incoming{Lossy: f.has("lossy"), PeerFirst: f.has("peer_first"), Opening: Opening{
			Reconnect: words[0] == "SESSION_RECONNECT", ClientCookie: f.num("client"), ServerCookie: f.num("server"),
			GlobalSeq: f.num("gs"), ConnectSeq: f.num("cs"), MsgSeq: f.num("msg")}}
		p, ok := policies[f["policy"]]
		require.True(t, ok, "policy %q", f["policy"])
		a := p.Answer(s, in)
		switch a.Verdict {
		case AcceptNew, ReplaceLossy:
			r.s = &Session{Policy: p, Dialable: true, BackoffMin: 200 * time.Millisecond, BackoffMax: 15 * time.Second}
			r.s.Accepted(in, 1000)
		case Take:
			if a.Lost {
				s.Reset()
			}
			s.Take(in, 1000)
		}
		return says("%v", a)
	}
	t.Fatalf("unknown input %q", words[0])
	return ""
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return "error: " + err.Error()
}

func (r *scripted) state() string {
	if r.s == nil {
		return ""
	}
	s := r.s
	lossy := ""
	if s.Policy.Lossy {
		lossy = " lossy"
	}
	return fmt.Sprintf("  [%v%s cookies=%d/%d cs=%d pgs=%d out=%d acked=%d in=%d]", s.State, lossy,
		s.ClientCookie, s.ServerCookie, s.ConnectSeq, s.PeerGlobalSeq, s.OutSeq, s.Acked, s.InSeq)
}
