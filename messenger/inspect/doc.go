// Package inspect shows what a messenger does, as JSON over HTTP, and answers
// probes about its health.
package inspect
