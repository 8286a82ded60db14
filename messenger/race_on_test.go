//go:build race

package messenger

const raceEnabled = true
