package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// TestMain turns the test binary into the answering end where a test has started it as such: one that does not answer.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "-serve" {
		servers["tcp"] = newMute
		if err := serve(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func newMute() (server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &tcpEcho{ln: ln}
	e.g.Go(func() error {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.Copy(io.Discard, c)
		return err
	})
	return e, nil
}

// ends fails where f has not ended in time.
func ends(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }() // ends with f
	select {
	case err := <-done:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("it hangs")
		return nil
	}
}

// A call that is not answered fails at its deadline, and the other end goes with it.
func TestCallDeadline(t *testing.T) {
	err := ends(t, func() error {
		_, err := tcpCallUntil(time.Minute, time.Second) // which starts the other end, too
		return err
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// An answering end that nobody has connected to ends, too.
func TestServerWithoutClient(t *testing.T) {
	s, err := newTCPEcho()
	if err != nil {
		t.Fatal(err)
	}
	_ = ends(t, s.close)
}

// A selection that matches nothing is an error.
func TestNothingSelected(t *testing.T) {
	if _, err := run(1, time.Millisecond, "no such row"); err == nil {
		t.Fatal("it has passed")
	}
}
