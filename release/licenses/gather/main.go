// Command gather collects the licence texts of everything that is compiled into programs, for
// package licenses. `make licenses` runs it; it is no part of the barque binary.
//
//	gather -o FILE NAME=PACKAGE[,TAG…]…
//
// The tag cgo stands for a build with cgo. GOOS and GOARCH choose the build. The file is written
// only when its content changes, so that nothing is linked again.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/barque/barque/release/licenses"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gather:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("gather", flag.ContinueOnError)
	out := flags.String("o", "", "the `file` to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var programs []program
	for _, arg := range flags.Args() {
		name, build, found := strings.Cut(arg, "=")
		tags := strings.Split(build, ",")
		if !found || name == "" || tags[0] == "" {
			return fmt.Errorf("%q: want NAME=PACKAGE[,TAG…]", arg)
		}
		programs = append(programs, program{name: name, pkg: tags[0], tags: tags[1:]})
	}
	if *out == "" || len(programs) == 0 {
		return errors.New("usage: gather -o FILE NAME=PACKAGE[,TAG…]…")
	}
	var failed error
	var used []use
	for _, p := range programs {
		found, err := p.uses()
		failed = errors.Join(failed, err)
		used = append(used, found...)
	}
	if failed != nil {
		return failed
	}
	components, err := ofModules(used)
	if err != nil {
		return err
	}
	others, missing := ofSystem("/", goRoot(), programs)
	for _, name := range missing {
		fmt.Fprintf(os.Stderr, "warning: the licence text of %s is not on this machine; `barque licenses` lacks it\n",
			name)
	}
	packed, err := licenses.Pack(append(others, components...))
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(*out); err == nil && bytes.Equal(old, packed) {
		return nil
	}
	if err := os.WriteFile(*out+".new", packed, 0o644); err != nil {
		return err
	}
	return os.Rename(*out+".new", *out)
}

// add appends a name to a sorted list once.
func add(names []string, name string) []string {
	at, found := slices.BinarySearch(names, name)
	if found {
		return names
	}
	return slices.Insert(names, at, name)
}
