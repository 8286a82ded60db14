package fabric

import "os"

// MemoryLimit looks at the machine and the control group.
func MemoryLimit() Memory { return memoryIn(os.DirFS("/")) }
