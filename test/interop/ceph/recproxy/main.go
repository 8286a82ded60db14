// Command recproxy forwards TCP connections and records what flows: one pair
// of files per connection, NNN-client.bin and NNN-server.bin, each holding
// the bytes that this side sent. It is a test tool for recording a daemon's
// exchange on loopback; it keeps no timing.
//
//	recproxy -listen 127.0.0.1:3300 -to 127.0.0.1:13300 -dir captures -wait 30s
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:3300", "address to accept connections on")
	to := flag.String("to", "127.0.0.1:13300", "address to forward them to")
	dir := flag.String("dir", ".", "directory for the recordings")
	wait := flag.Duration("wait", 0, "how long the daemon may take to start, before connections are accepted")
	flag.Parse()
	if err := run(*listen, *to, *dir, *wait); err != nil {
		log.Fatal(err)
	}
}

// run serves until SIGINT or SIGTERM, then closes every connection and waits
// for its goroutines.
func run(listen, to, dir string, wait time.Duration) error {
	if err := reachable(to, wait); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	p := &proxy{dir: dir, to: to}
	go func() { // ends with the signal
		<-stop
		ln.Close()
	}()
	for n := 0; ; n++ {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			p.closeAll()
			p.wg.Wait()
			return nil
		}
		if err != nil {
			return err
		}
		p.wg.Add(1)
		go p.serve(n, c) // ends with the connection
	}
}

// reachable waits until something listens at addr.
func reachable(addr string, wait time.Duration) error {
	for end := time.Now().Add(wait); ; time.Sleep(100 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) {
			return err
		}
	}
}

type proxy struct {
	dir, to string
	wg      sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func (p *proxy) track(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
}

func (p *proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

func (p *proxy) serve(n int, client net.Conn) {
	defer p.wg.Done()
	p.track(client)
	defer client.Close()
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		log.Printf("connection %d: %v", n, err)
		return
	}
	p.track(server)
	defer server.Close()

	var both sync.WaitGroup
	both.Add(2)
	for _, half := range []struct {
		name     string
		dst, src net.Conn
	}{{"client", server, client}, {"server", client, server}} {
		go func() { // ends when src ends or dst is closed
			defer both.Done()
			name := filepath.Join(p.dir, fmt.Sprintf("%03d-%s.bin", n, half.name))
			if err := record(name, half.dst, half.src); err != nil && !errors.Is(err, net.ErrClosed) {
				log.Printf("connection %d, %s: %v", n, half.name, err)
			}
			_ = half.dst.(*net.TCPConn).CloseWrite() // it may be closed already
		}()
	}
	both.Wait()
}

func record(name string, dst io.Writer, src io.Reader) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.MultiWriter(f, dst), src)
	return errors.Join(err, f.Close())
}
