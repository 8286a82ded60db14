package conn

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs"
)

const (
	pollBatch = 64
	// idlePolls is how often a spinning poller polls before it looks at the
	// clock and lets others have the processor: both cost more than a poll.
	idlePolls = 16
	// upcallTurns is how many batches the device's goroutine handles in a row.
	upcallTurns = 4
	// brokenWait is how often a poller looks for completions when the device's
	// completion channel has failed: connections have to be taken down still.
	brokenWait = 10 * time.Millisecond
)

// mailBits are what a poller is asked to do about a connection.
const (
	mailSettle  uint32 = 1 << iota // post what can be posted
	mailResume                     // ask Admit again
	mailSupply                     // memory has come
	mailGone                       // the QP is in ERR
	mailFail                       // err is set
	mailHide                       // completions are not to find it any more
	mailReaped                     // the QP is destroyed
	mailPromote                    // the peer is to have all credits
)

// poller serves the connections of its lanes and owns their receiving side:
// with turning held, a goroutine that sleeps when there is nothing to do, or,
// meanwhile, the goroutine of the device that has completed something.
type poller struct {
	e     *Endpoint
	index int
	ch    *verbs.CompChannel
	lanes atomic.Pointer[[]*lane]
	done  chan struct{} // closed when the goroutine has ended

	members  int         // connections; guarded by Endpoint.mu
	sleeping atomic.Bool // the mail is not being looked at
	broken   atomic.Bool // the channel: the last Wait has failed
	stopping atomic.Bool

	turning sync.Mutex // before every other lock

	mu   sync.Mutex
	mail []*Conn // with Conn.mail != 0

	// Guarded by turning.
	spare   []*Conn // mail, when it is being read
	touched []*Conn // to be settled at the end of the batch
	packets *packet // free ones
	wcs     [pollBatch]verbs.WC
}

// run is the poller's goroutine. It belongs to the endpoint and ends after stop.
func (p *poller) run() {
	defer close(p.done)
	p.turning.Lock()
	defer p.turning.Unlock()
	var (
		polls int       // without success, since idle
		idle  time.Time // when the clock was looked at first
	)
	for {
		some, more := p.turn()
		if some {
			polls = 0
		}
		if more {
			continue
		}
		if p.stopping.Load() && !some {
			return
		}
		if spin := p.e.cfg.Spin; spin > 0 {
			polls++
			if polls%idlePolls != 0 {
				continue
			}
			now := time.Now()
			if polls == idlePolls {
				idle = now
			}
			if now.Sub(idle) < spin {
				runtime.Gosched()
				continue
			}
			polls = 0
		}
		p.sleep()
	}
}

// turn handles one batch per lane and what is in the mail. It reports whether
// there was any, and whether there may be more: a queue that gave less than a
// full batch is empty, and looked at again when it is armed.
func (p *poller) turn() (some, more bool) {
	for _, l := range *p.lanes.Load() {
		n := p.poll(l)
		some, more = some || n > 0, more || n == pollBatch
	}
	return p.readMail() || some, more
}

// poll handles one batch of completions.
func (p *poller) poll(l *lane) int {
	n, err := l.cq.Poll(p.wcs[:])
	p.batch(l, n, err)
	return n
}

// batch handles what a poll has given.
func (p *poller) batch(l *lane, n int, err error) {
	for i := range n {
		p.completed(l, &p.wcs[i])
	}
	switch {
	case err == nil:
	case errors.Is(err, verbs.ErrStale): // the rest of the batch holds
		p.e.stats.stale.Add(1)
		p.e.log.Error("the device has completed what was not posted", "err", err)
	default:
		l.failAll(err)
	}
	if n > 0 {
		p.settle(l)
	}
}

// settle ends a batch: receives are posted, and the connections that the batch
// has touched are settled.
func (p *poller) settle(l *lane) {
	if l.rq != nil {
		if err := l.rq.flush(); err != nil {
			l.failAll(err)
		}
	}
	for i := 0; i < len(p.touched); i++ { // callbacks may touch more
		c := p.touched[i]
		c.rx.touched = false
		if c.rx.reaped {
			continue
		}
		if l.rq == nil {
			if err := c.rq.flush(); err != nil {
				c.recvFailed(err)
			}
		}
		c.settle()
	}
	clear(p.touched)
	p.touched = p.touched[:0]
}

// touch has c settled at the end of the batch.
func (p *poller) touch(c *Conn) {
	if !c.rx.touched {
		c.rx.touched = true
		p.touched = append(p.touched, c)
	}
}

// kick asks c's poller to do something about c. It does not block.
func (c *Conn) kick(bits uint32) {
	if c.mail.Or(bits) != 0 {
		return // it is in the mail already
	}
	p := c.p
	p.mu.Lock()
	p.mail = append(p.mail, c)
	p.mu.Unlock()
	p.wake()
}

// wake makes the poller look around if it sleeps.
func (p *poller) wake() {
	if p.sleeping.Load() && p.sleeping.CompareAndSwap(true, false) {
		p.ch.Wake()
	}
}

// readMail handles the mail and reports whether there was any.
func (p *poller) readMail() bool {
	p.mu.Lock()
	mail := p.mail
	p.mail = p.spare[:0]
	p.mu.Unlock()
	for _, c := range mail {
		p.mailFor(c, c.mail.Swap(0))
		p.settle(c.l)
	}
	clear(mail)
	p.spare = mail
	return len(mail) > 0
}

func (p *poller) mailFor(c *Conn, bits uint32) {
	if c.rx.reaped {
		return
	}
	if bits&mailSupply != 0 {
		c.supplied()
	}
	if bits&mailPromote != 0 {
		c.promoted()
	}
	if bits&mailResume != 0 && c.rx.gate == gateAdmit {
		c.reopen()
	}
	if bits&mailGone != 0 && !c.rx.dead {
		// What has completed before comes first: at most a queue full of it.
		for left := c.l.cq.Depth(); left > 0; {
			n := p.poll(c.l)
			if n == 0 {
				break
			}
			left -= n
		}
		c.lost()
	}
	if c.Err() != nil && c.isSetUp() {
		c.faultOnce()
	}
	if bits&mailHide != 0 {
		c.l.hide(c)
		close(c.hidden)
	}
	if bits&mailReaped != 0 {
		c.buried()
		return
	}
	p.touch(c)
}

// rest looks around once more, and arms the lanes that have nothing. It reports
// whether there is nothing to do, and whether a lane could not be armed.
func (p *poller) rest() (idle, broken bool) {
	p.sleeping.Store(true)
	idle = true
	for _, l := range *p.lanes.Load() {
		if l.armed {
			idle = p.poll(l) == 0 && idle
			continue
		}
		n, armed, err := l.cq.PollArm(p.wcs[:])
		l.armed = armed
		broken = broken || n == 0 && !armed
		p.batch(l, n, err)
		idle = idle && n == 0
	}
	if p.readMail() || !idle {
		p.sleeping.Store(false)
		return false, broken
	}
	return true, broken
}

// announced takes note that cq is not armed any more.
func (p *poller) announced(cq *verbs.CQ) {
	for _, l := range *p.lanes.Load() {
		if l.cq == cq {
			l.armed = false
		}
	}
}

// upcall does the poller's work in the goroutine of the device that has
// completed something, while the poller sleeps. What is more than a few batches
// it leaves to the poller, so that the device goes on meanwhile.
func (p *poller) upcall(cq *verbs.CQ) bool {
	if !p.turning.TryLock() {
		return false
	}
	defer p.turning.Unlock()
	if p.stopping.Load() {
		return false
	}
	p.announced(cq)
	p.e.stats.upcalls.Add(1)
	for range upcallTurns {
		p.sleeping.Store(false)
		p.turn()
		if idle, broken := p.rest(); idle && !broken {
			return true
		}
	}
	p.sleeping.Store(true)
	p.ch.Wake()
	return true
}

// sleep waits for a completion or for mail.
func (p *poller) sleep() {
	idle, broken := p.rest()
	if !idle {
		return
	}
	if p.stopping.Load() {
		p.sleeping.Store(false)
		return
	}
	broken = broken || p.broken.Load()
	p.e.stats.sleeps.Add(1)
	ctx, cancel := context.Background(), context.CancelFunc(nil)
	if broken {
		ctx, cancel = context.WithTimeout(ctx, brokenWait)
		defer cancel()
	}
	p.turning.Unlock()
	cq, err := p.ch.Wait(ctx)
	p.turning.Lock()
	p.sleeping.Store(false)
	p.announced(cq)
	if ctx.Err() != nil {
		return // broken, and looking again
	}
	p.broken.Store(err != nil)
	if err == nil {
		return
	}
	for _, l := range *p.lanes.Load() {
		l.endAll(err) // it is the channel that has failed, not the queues
	}
	if broken { // it does not even wait for the time given
		t := time.NewTimer(brokenWait)
		<-t.C
	}
}

// stop ends the goroutine and waits for it. Its connections are gone.
func (p *poller) stop() {
	p.stopping.Store(true)
	p.ch.Wake()
	<-p.done
}

func (p *poller) newPacket() *packet {
	k := p.packets
	if k == nil {
		return new(packet)
	}
	p.packets = k.next
	return k
}

func (p *poller) freePacket(k *packet) {
	*k = packet{next: p.packets}
	p.packets = k
}
