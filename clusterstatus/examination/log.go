package examination

import (
	"regexp"
	"strings"
	"time"
)

// The log of a server, as the doctor reads it.

// errorsIn is the age up to which an error is a finding. An older one may be fixed already.
const errorsIn = time.Hour

// logged matches log lines that are findings, whatever the status.
var logged = regexp.MustCompile(`level=ERROR|panic:|fatal error:`)

// harmless are lines that the Kubernetes libraries log as errors and that are no faults of the
// server, each with the reason.
var harmless = []struct {
	line *regexp.Regexp
	why  string
}{
	// The library reports a panic after the timeout in the second line only.
	{regexp.MustCompile(`msg="Timeout or abort while handling"|msg="Post-timeout activity".* result=<nil>\s*$`),
		"a client cancelled a request, as a stopped one does, or the answer took too long; a fault of the cluster that causes this has its own finding"},
	{regexp.MustCompile(
		`msg="(Error on socket receive|Error proxying data from (client to backend|backend to client))"`),
		"an exec, attach, port-forward or proxy was cut by the client or came to its end"},
	{regexp.MustCompile(`conversion webhook for [^"]* failed`),
		"objects of a custom resource could not be converted; as long as its webhook cannot be called the status names it"},
	{regexp.MustCompile(`error resolving [a-z0-9-]+/[a-z0-9-]+: `),
		"the Service of an APIService was not found or had no ready pod; as long as it is so the status names it"},
	{regexp.MustCompile(`msg="Unable to authenticate the request"`),
		"a client with a certificate or token that is not valid, or not any more, was refused"},
}

// logReading holds the findings in a log.
type logReading struct {
	errors, older int
	last          string         // of the errors
	harmless      map[string]int // by the reason
}

// readLog looks for errors. Those before since are counted separately.
func readLog(text string, since time.Time) logReading {
	r := logReading{harmless: map[string]int{}}
lines:
	for line := range strings.Lines(text) {
		if !logged.MatchString(line) {
			continue
		}
		for _, h := range harmless {
			if h.line.MatchString(line) {
				r.harmless[h.why]++
				continue lines
			}
		}
		if at, ok := writtenAt(line); ok && at.Before(since) {
			r.older++
			continue
		}
		r.errors, r.last = r.errors+1, shortened(strings.TrimSpace(line))
	}
	return r
}

// writtenAt is the time with which the line begins.
func writtenAt(line string) (time.Time, bool) {
	rest, ok := strings.CutPrefix(line, "time=")
	if !ok {
		return time.Time{}, false
	}
	word, _, _ := strings.Cut(rest, " ")
	at, err := time.Parse(time.RFC3339Nano, word)
	return at, err == nil
}

func shortened(line string) string {
	const most = 240
	if len(line) <= most {
		return line
	}
	return strings.ToValidUTF8(line[:most], "") + "…"
}
