package mvcc

// clock tells how old history is, from the times that the commands carry.
//
// These come from the clocks of the servers that led, of which one may be wrong by hours, or be put right. What
// passes between two commands counts for at most a step, therefore, and not at all when it is negative. So a
// clock that jumps does not drop history all at once, at which every watcher that lags a little, and every list
// that is read in pages, would have to begin anew. Where hardly anything is written, history reaches further back
// than its age says; its bytes bound it there.
type clock struct {
	newest  int64 // time of the newest command, in Unix milliseconds
	elapsed int64 // what has passed, in milliseconds, from a moment that does not matter
}

// stepsPerAge is how many steps make up the age of history: so many jumps it takes to drop it.
const stepsPerAge = 20

// advance takes the time of a command.
func (c *clock) advance(now, age int64) {
	if now > c.newest {
		c.elapsed += min(now-c.newest, max(age/stepsPerAge, 1))
	}
	c.newest = now
}

// wall returns what the clock of the newest command would have said at a moment of elapsed.
func (c *clock) wall(elapsed int64) int64 { return c.newest - (c.elapsed - elapsed) }

// startAt returns a clock that goes on where another one was when it stood at a time: what that called wall time
// is elapsed time here.
func startAt(now int64) clock { return clock{newest: now, elapsed: now} }
