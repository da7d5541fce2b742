// Command lint holds rules of style that need types. go vet runs it:
//
//	go vet -vettool=bin/lint ./...
//
// Errors are compared by errors.Is and errors.As. A log line has a constant text that begins with a
// small letter, and its variable parts in attributes, whose keys are the same for the same thing.
// Keys are in camelCase with Go's initialisms, such as tokenID, which the analyzer does not know.
// Texts of others go through internal/logline.
package main

import (
	"github.com/polyfloyd/go-errorlint/errorlint"
	"go-simpler.org/sloglint"
	"golang.org/x/tools/go/analysis/unitchecker"
)

const module = "github.com/barque/barque/"

func main() {
	unitchecker.Main(
		errorlint.NewAnalyzer(),
		sloglint.New(&sloglint.Options{
			StaticMessage:    true,
			MessageStyle:     "lowercased",
			NoMixedArguments: true,
			// An error is err, its like for people reason, and the pause before a repetition
			// retryIn. The others would stand twice in a line.
			ForbiddenKeys: []string{"error", "because", "cause", "problem", "why", "in", "time", "level", "msg"},
			// These add something to a line whose text is their caller's.
			CustomFuncs: []sloglint.Func{
				{FullName: "(" + module + "edge/provider.Config).warn", MessagePos: 0, ArgumentsPos: -1},
				{FullName: "(*" + module + "internal/connlimit.Limiter).say", MessagePos: 0, ArgumentsPos: -1},
				{FullName: "(*" + module + "kubelet/csi.Plugin).complain", MessagePos: 1, ArgumentsPos: -1},
				{FullName: "(*" + module + "kubelet/dra.Manager).complain", MessagePos: 1, ArgumentsPos: -1},
				{FullName: "(*" + module + "kubelet/shutdown.Manager).complain", MessagePos: 0, ArgumentsPos: -1},
				{FullName: "(*" + module + "raftstore/transport.complaints).warn", MessagePos: 0, ArgumentsPos: 1},
				{FullName: "(*" + module + "raftstore/transport.complaints).warnOf", MessagePos: 1, ArgumentsPos: -1},
			},
		}),
	)
}
