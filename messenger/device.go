package messenger

import (
	"fmt"
	"slices"

	"github.com/argonaut-rdma/argonaut/conn"
)

// A transport whose device is lost (conn.Endpoint.Lost) does not come back before
// the messenger is made anew. Its connections end, which their sessions take as
// they take any fault: lossless ones go on by another transport of the same peer,
// if there is one.

// isLost reports whether the transport of scheme, if there is one, has lost its
// device.
func (m *Messenger) isLost(scheme string) bool {
	ep := m.endpoints[scheme]
	if ep == nil {
		return false
	}
	select {
	case <-ep.Lost():
		return true
	default:
		return false
	}
}

// has reports whether there is a transport for scheme, with its device.
func (m *Messenger) has(scheme string) bool { return m.endpoints[scheme] != nil && !m.isLost(scheme) }

// watch waits until the device of ep is lost, and then tells no peer any more that
// it reaches us there. It ends with m.stop.
func (m *Messenger) watch(scheme string, ep *conn.Endpoint) {
	defer m.wg.Done()
	select {
	case <-m.stop:
		return
	case <-ep.Lost():
	}
	of := func(a EntityAddr) bool { return a.Scheme() == scheme }
	m.mu.Lock()
	without := func(v AddrVec) AddrVec { return slices.DeleteFunc(slices.Clone(v), of) }
	m.asked, m.bound = without(m.asked), without(m.bound) // the endpoint has closed its listeners
	m.listening = slices.DeleteFunc(slices.Clone(m.listening), func(l listening) bool { return of(l.at) })
	m.tell()
	left := m.told
	m.mu.Unlock()
	m.log.Error("the device of a transport is lost", "transport", scheme, "device", ep.Device().Name(), "left", left.String())
}

// lostDevices says for Health which transports have lost their devices.
func (m *Messenger) lostDevices() (problems []string) {
	for scheme, ep := range m.endpoints {
		if m.isLost(scheme) {
			problems = append(problems, fmt.Sprintf("the device %s of %s:// is lost: peers are reached by other transports, until the messenger is made anew",
				ep.Device().Name(), scheme))
		}
	}
	slices.Sort(problems)
	return problems
}
