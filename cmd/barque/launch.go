package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/cmd/barque/settings"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/upgrade/versions"
)

// launched is the state of this process, if it is a node.
var launched = &versions.Launched{}

// launch gives the process of a node to the version that counts, see package versions. It comes
// before the flags are read: a later version may have more of them.
func launch(args []string) error {
	if len(args) < 2 || args[1] != roleServer && args[1] != roleAgent || asksForHelp(args) {
		return nil
	}
	dir, ok := dataDirOf(args[2:], os.Environ())
	if !ok {
		return nil // the command itself refuses its settings
	}
	if _, given := os.LookupEnv(versions.Marker); !given && versions.Recorded(dir) {
		// A process that is about to end may still have the directory. Without this wait, and where
		// another one runs with it, the program before would go on in place of the one that counts.
		if err := unused(dir); err != nil {
			return err
		}
	}
	l, err := versions.Launch(dir, args, command.NewLogger(slog.LevelInfo))
	if err == nil {
		launched = l
	}
	return err
}

const (
	// unusedWait bounds the wait for the end of the process before.
	unusedWait  = 15 * time.Second
	unusedEvery = 50 * time.Millisecond
)

// unused waits until no other process runs with a data directory.
func unused(dir string) error {
	ticker := time.NewTicker(unusedEvery)
	defer ticker.Stop()
	for began := time.Now(); ; <-ticker.C {
		if err := enroll.CheckUnused(dir); err == nil || time.Since(began) > unusedWait {
			return err
		}
	}
}

func asksForHelp(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return a == "--help" || a == "-h" })
}

// dataDirOf finds the data directory in the arguments, the environment and the files of settings.
// All other settings are passed over.
func dataDirOf(args, env []string) (dir string, ok bool) {
	flags := pflag.NewFlagSet("launch", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	found := flags.String("data-dir", command.DefaultDataDir, "")
	config := flags.String("config", settings.DefaultFile, "")
	if flags.Parse(args) != nil {
		return "", false
	}
	if !flags.Changed("config") {
		if file := os.Getenv("BARQUE_CONFIG"); file != "" {
			*config = file
		}
	}
	kind := settings.Kind{Foreign: func(string) bool { return true }, Own: []string{"config"}}
	if _, err := settings.Load(flags, kind, *config, env); err != nil {
		return "", false
	}
	return *found, true
}

// restarts returns a context that ends when the node is to be started again by itself, and lets the
// node do that.
func restarts(ctx context.Context) (context.Context, func(why string), func() bool) {
	ctx, stop := context.WithCancelCause(ctx)
	return ctx, func(why string) { stop(&againError{why}) }, func() bool {
		var again *againError
		return errors.As(context.Cause(ctx), &again)
	}
}

// againError is the cause of a stop after which the node is started again in the same process.
type againError struct{ why string }

func (e *againError) Error() string { return node.ErrRestart.Error() + ": " + e.why }
