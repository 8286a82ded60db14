package messenger

// messageOverhead is what a message costs of the dispatch throttle beside its
// bytes, so that empty ones are bounded too.
const messageOverhead = 256

// throttles are the three that a received message passes, in this order, before
// its payload is fetched.
type throttles struct {
	messages *throttle // Policy.MaxMessages
	bytes    *throttle // Policy.MaxBytes
	dispatch *throttle // Config.DispatchBytes
}

// budget is what a message holds of them until its last Release.
type budget struct {
	t     throttles
	bytes int64
	held  bool
}

func (b *budget) release() {
	if !b.held {
		return
	}
	b.held = false
	b.t.dispatch.give(b.bytes + messageOverhead)
	b.t.bytes.give(b.bytes)
	b.t.messages.give(1)
}

// admission takes the throttles for one message, one after the other, across
// waits. It is used again for the next message.
type admission struct {
	t     throttles
	bytes int64
	stage int // how many throttles have been taken
	w     throttleWaiter
	on    *throttle // the one that w waits at
}

func (a *admission) begin(t throttles, bytes int64) {
	a.t, a.bytes, a.stage, a.on = t, bytes, 0, nil
}

// advance takes what it can, and returns true when all three are taken. Else
// wake is called once when it should be called again.
func (a *admission) advance(wake func()) bool {
	if a.on != nil { // woken: what it waited for has been taken
		a.on = nil
		a.stage++
	}
	for ; a.stage < 3; a.stage++ {
		t, n := a.at(a.stage)
		a.w.wake = wake
		if !t.takeOrWait(n, &a.w) {
			a.on = t
			return false
		}
	}
	return true
}

func (a *admission) at(stage int) (*throttle, int64) {
	switch stage {
	case 0:
		return a.t.messages, 1
	case 1:
		return a.t.bytes, a.bytes
	}
	return a.t.dispatch, a.bytes + messageOverhead
}

// abandon gives back what has been taken, of an admission that advance has not
// finished.
func (a *admission) abandon() {
	if a.on != nil {
		if !a.on.cancel(&a.w) {
			a.stage++
		}
		a.on = nil
	}
	for a.stage > 0 {
		a.stage--
		t, n := a.at(a.stage)
		t.give(n)
	}
}

func (a *admission) budget() budget { return budget{t: a.t, bytes: a.bytes, held: true} }
