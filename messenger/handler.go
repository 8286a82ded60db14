package messenger

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
)

// handlerMark names a messenger in the arguments of what calls its handlers: an
// identifier and its complement. An array is passed on the stack, where a
// traceback shows it as it is; on the way to a handler it costs two stores.
type handlerMark [2]uint64

var lastMark atomic.Uint64

func newHandlerMark() handlerMark {
	id := lastMark.Add(1)
	return handlerMark{id, ^id}
}

// The functions that call handlers; a mark is their first argument.
var handlerCallers = [...]string{nameOf((*Connection).runHandlers), nameOf((*Connection).fastDispatch), nameOf((*Connection).runFastHandlers)}

func nameOf(f any) string { return runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name() }

// inHandler reports whether a handler of m is among the callers. A traceback
// that can not be read, of another compiler perhaps, counts as one.
func (m *Messenger) inHandler() bool {
	buf := make([]byte, 64<<10) // a traceback has 100 frames at most
	text := string(buf[:runtime.Stack(buf, false)])
	for _, name := range handlerCallers {
		for _, call := range strings.Split(text, name+"(")[1:] {
			line, _, _ := strings.Cut(call, "\n")
			_, args, _ := strings.Cut(line, "{")
			var mark handlerMark
			n, _ := fmt.Sscanf(args, "%v, %v}", &mark[0], &mark[1])
			if n != 2 || mark[1] != ^mark[0] || mark == m.mark {
				return true
			}
		}
	}
	return false
}
