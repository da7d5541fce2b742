// Command mkbundle is the build tool of the node components. The Makefile calls
// it; it is no part of the barque binary.
//
//	mkbundle image -name REF [-arch A] [-user U] [-port P] -o OUT.tar BINARY
//	mkbundle pack -o DIR FILE...
//
// Its output depends on nothing but its input: no times, no host names, no
// order of a map.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
)

var errUsage = errors.New("usage: mkbundle image|pack -o OUT … INPUT…")

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkbundle:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	out := flags.String("o", "", "what to write")
	switch args[0] {
	case "image":
		var spec imageSpec
		flags.StringVar(&spec.name, "name", "", "image reference, such as barque.local/pause:1")
		flags.StringVar(&spec.arch, "arch", runtime.GOARCH, "architecture of the binary, by Go's name")
		flags.StringVar(&spec.user, "user", "", "user the image runs as")
		flags.StringVar(&spec.port, "port", "", "port the image exposes, such as 8080/tcp")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		if flags.NArg() != 1 || *out == "" || spec.name == "" {
			return errUsage
		}
		spec.binary = flags.Arg(0)
		return writeImage(spec, *out)
	case "pack":
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		if flags.NArg() == 0 || *out == "" {
			return errUsage
		}
		return pack(flags.Args(), *out)
	default:
		return errUsage
	}
}
