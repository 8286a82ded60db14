// Package messengertest has what tests of programs that use a messenger need: a
// network in memory that cuts, delays and splits, and a cluster of messengers
// on it, in one process. Both work under testing/synctest, where time is
// virtual: a test of a 15 s pause takes no time.
//
//	synctest.Test(t, func(t *testing.T) {
//		cl := messengertest.New(t, messengertest.Config{Nodes: 3})
//		c, err := cl.Nodes[0].ConnectTo(messenger.OSD, cl.Nodes[1].Addrs())
//		cl.Net.Split([]string{cl.Nodes[0].Host}, []string{cl.Nodes[1].Host})
//		...
//		cl.Net.Heal()
//	})
//
// Goroutines: the network has none of its own but timers'; those of the
// messengers end with the test.
package messengertest
