package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/barque/barque/clusterstatus/cis"
)

// rooms are the directories whose texts name commands to operators.
var rooms = []string{"adminapi", "apiserver", "backups", "clusterstatus", "cmd", "controllers", "devcluster",
	"internal", "kubelet", "membership", "network", "pki", "raftstore", "scheduler", "upgrade"}

var (
	// aCommand is `barque`, at the beginning of a text or of a part of it, and a word after it.
	aCommand = regexp.MustCompile(
		`(?:^|[:;,(\n] *|→ |or |['` + "`" + `"])barque ([a-z][a-z-]*(?: [^;,()'` + "`" + `"\n]*)?)`)
	aFlag = regexp.MustCompile(`--[a-z][a-z-]*`)
	aWord = regexp.MustCompile(`^[a-z][a-z-]*$`)
	// noCommand is the label of a key or a message, or a sentence about the program.
	noCommand = regexp.MustCompile(`^(?:data|gossip|join|sealing) (?:[a-z]+ ?)*(?:v[0-9]+)?$|^needs `)
)

// unknownIn returns why the command lines in a text cannot be run; nil if all can.
func unknownIn(root *cobra.Command, text string) error {
	var errs []error
	for _, found := range aCommand.FindAllStringSubmatch(text, -1) {
		line, _, _ := strings.Cut(found[1], " or ")
		if line = strings.Trim(line, " \x00"); noCommand.MatchString(line) {
			continue
		}
		if err := resolve(root, line); err != nil {
			errs = append(errs, fmt.Errorf("barque %s: %w", line, err))
		}
	}
	return errors.Join(errs...)
}

// resolve finds the command of a line, and its flags.
func resolve(root *cobra.Command, line string) error {
	at := root
	words := strings.Fields(line)
	for at.HasSubCommands() && len(words) > 0 {
		next := child(at, words[0])
		if next == nil {
			break
		}
		at, words = next, words[1:]
	}
	if at == root || at.HasSubCommands() && len(words) > 0 && aWord.MatchString(words[0]) {
		return fmt.Errorf("%q has no such command", at.CommandPath())
	}
	if at.DisableFlagParsing { // kubectl
		return nil
	}
	at.InitDefaultHelpFlag()
	for _, flag := range aFlag.FindAllString(strings.Join(words, " "), -1) {
		if name := flag[2:]; at.Flags().Lookup(name) == nil && at.InheritedFlags().Lookup(name) == nil {
			return fmt.Errorf("%q has no %s", at.CommandPath(), flag)
		}
	}
	return nil
}

func child(of *cobra.Command, name string) *cobra.Command {
	for _, c := range of.Commands() {
		if c.Name() == name || c.HasAlias(name) {
			return c
		}
	}
	return nil
}

// TestNamedCommandsExist: each command that a finding, an error or a help names is one of the
// program's, with these flags.
func TestNamedCommandsExist(t *testing.T) {
	root := root()
	for _, row := range cis.Rows() {
		if err := unknownIn(root, row.Mend); err != nil {
			t.Errorf("row %s: %v", row.ID, err)
		}
	}
	seen := 0
	for _, room := range rooms {
		err := filepath.WalkDir(filepath.Join("../..", room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if literal, is := n.(*ast.BasicLit); is && literal.Kind == token.STRING {
					text, err := strconv.Unquote(literal.Value)
					if err != nil {
						t.Fatal(err)
					}
					if aCommand.MatchString(text) {
						seen++
					}
					if err := unknownIn(root, text); err != nil {
						t.Errorf("%s: %v", files.Position(literal.Pos()), err)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if seen < 100 {
		t.Errorf("%d texts name commands: the search misses most", seen)
	}
}

// TestUnknownCommandsAreFound: the search above finds what does not exist.
func TestUnknownCommandsAreFound(t *testing.T) {
	root := root()
	for text, good := range map[string]bool{
		"barque cert renew":                                     false,
		"barque cert rotate":                                    true,
		"barque cert rotate --server s1; then look":             true,
		"barque cert rotate --serve s1":                         false,
		"wait; otherwise: barque clusters status":               false,
		"barque server --join URL or barque agent --server URL": true,
		"barque needs root":                                     true,
		"barque gossip keys v1":                                 true,
		"see `barque snapshot key`":                             true,
		"see `barque snapshot keys`":                            false,
		"barque kubectl -n x describe pod y --whatever":         true,
		"barque cert rotate (or barque user revoked ann)":       false,
		"start it, or barque cluster remove s1 --for-ever":      false,
		"a barque is a ship; the program barque has no such":    true,
	} {
		if err := unknownIn(root, text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}
