// Command builder makes a release of Barque from the commit that is checked out: archives,
// packages, a bill of materials, provenance, checksums and their signature. `make release` runs it;
// docs/releases.md describes the result.
//
//	builder -o DIR [-archs amd64,arm64] [-key FILE [-password-file FILE]] [-reuse]
//
// It exports the commit into a directory of its own and builds there by the Makefile, so that no
// file which is not committed takes part. All times are those of the commit. The same commit, Go
// toolchain and Debian packages give the same bytes in any directory.
//
// It is a module of its own, so that the libraries for packages do not enter Barque's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("builder", flag.ContinueOnError)
	out := flags.String("o", "bin/release", "the `directory` that gets a directory with the release")
	list := flags.String("archs", "amd64,arm64", "the architectures, by Go's names")
	key := flags.String("key", "", "the `file` of a minisign secret key, which signs the checksums")
	passwordFile := flags.String("password-file", "", "the `file` with the password of an encrypted key")
	reuse := flags.Bool("reuse", false, "take the schemas that this tree has generated, and generate none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	archs := strings.Split(*list, ",")
	for _, arch := range archs {
		if _, ok := toolchains[arch]; !ok {
			return fmt.Errorf("-archs %s: no release for %q; there are amd64 and arm64", *list, arch)
		}
	}
	slices.Sort(archs)
	archs = slices.Compact(archs)
	// A wrong key is found before minutes of building.
	var signer *signer
	if *key != "" {
		var err error
		if signer, err = readKey(*key, *passwordFile); err != nil {
			return err
		}
	}
	where, err := filepath.Abs(*out)
	if err != nil {
		return err
	}
	syscall.Umask(0o022)
	source, err := head(ctx)
	if err != nil {
		return err
	}
	b := &build{source: source, work: filepath.Join(where, ".work-"+source.commit[:12]), reuse: *reuse}
	if err := b.compile(ctx, archs); err != nil {
		return fmt.Errorf("%w (the sources and what was built are in %s)", err, b.work)
	}
	dir := filepath.Join(where, b.version)
	if err := b.assemble(ctx, dir, archs, signer); err != nil {
		return fmt.Errorf("%w (the sources and what was built are in %s)", err, b.work)
	}
	if err := os.RemoveAll(b.work); err != nil {
		return err
	}
	fmt.Println(dir)
	if signer == nil {
		fmt.Fprintln(os.Stderr, "WARNING: this release is NOT SIGNED; make release KEY=file signs by a minisign key")
	}
	return nil
}

// build is a release in the making.
type build struct {
	source
	// work has the sources, and the programs of each architecture in a directory of its name.
	work    string
	version string // as barque prints it
	reuse   bool   // the schemas that are in the working directory
	// inputs are the Debian packages that have come into programs, or that have made them.
	inputs []debPackage
}

// assemble makes the files of the release from the programs. The directory has its name only when
// it is whole.
func (b *build) assemble(ctx context.Context, dir string, archs []string, signer *signer) error {
	staging := dir + ".new"
	if err := errors.Join(os.RemoveAll(staging), os.MkdirAll(staging, 0o755)); err != nil {
		return err
	}
	pages, err := b.writePages(ctx)
	if err != nil {
		return err
	}
	for _, arch := range archs {
		l := layout{source: filepath.Join(b.work, "source"), pages: pages,
			program: filepath.Join(b.work, arch, "barque")}
		if err := b.pack(staging, arch, l); err != nil {
			return err
		}
	}
	texts, err := b.licences(ctx)
	if err != nil {
		return err
	}
	bom, err := b.bom(archs, texts)
	if err != nil {
		return err
	}
	base := filepath.Join(staging, "barque-"+b.version)
	if err := os.WriteFile(base+".sbom.json", bom, 0o644); err != nil {
		return err
	}
	subjects, err := sumsOf(staging)
	if err != nil {
		return err
	}
	statement, err := b.provenance(subjects, archs)
	if err != nil {
		return err
	}
	if err := os.WriteFile(base+".provenance.json", statement, 0o644); err != nil {
		return err
	}
	sums, err := sumsOf(staging)
	if err != nil {
		return err
	}
	text := sums.text()
	if err := os.WriteFile(filepath.Join(staging, "SHA256SUMS"), text, 0o644); err != nil {
		return err
	}
	if signer != nil {
		comment := fmt.Sprintf("barque %s, commit %s", b.version, b.commit)
		signature := signer.sign(text, comment)
		if err := os.WriteFile(filepath.Join(staging, "SHA256SUMS.minisig"), signature, 0o644); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(staging, dir)
}
