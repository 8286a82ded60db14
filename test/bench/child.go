package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// The answering end of a round trip is a process of its own. Within one process
// Go runs both ends of a raw connection on one thread, which never sleeps: no
// two machines do that.

// server answers round trips at an address until it is closed.
type server interface {
	addr() string
	close() error
}

var servers = map[string]func() (server, error){
	"tcp":       func() (server, error) { return newTCPEcho() },
	"conn":      func() (server, error) { return newConnEcho() },
	"messenger": func() (server, error) { return newMessengerEcho() },
}

// child is a server in a process of its own.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	at    string
}

// startChild runs this program again as the server of a kind.
func startChild(kind string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.Background(), exe, "-serve", kind)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, stdin: stdin}
	if c.at, err = bufio.NewReader(stdout).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("server %s: %w", kind, err), c.close())
	}
	c.at = strings.TrimSpace(c.at)
	return c, nil
}

// close ends the process, and reports it when it did not end well.
func (c *child) close() error { return errors.Join(c.stdin.Close(), c.cmd.Wait()) }

// serve is what the child does: it says its address and ends with stdin.
func serve(kind string) error {
	make := servers[kind]
	if make == nil {
		return fmt.Errorf("no server %q", kind)
	}
	s, err := make()
	if err != nil {
		return err
	}
	fmt.Println(s.addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, s.close())
}
