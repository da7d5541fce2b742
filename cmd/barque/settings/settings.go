// Package settings gives the flags of a command the values that files and variables of the
// environment have for them: /etc/barque/config.yaml, the drop-ins of /etc/barque/config.yaml.d,
// and BARQUE_* variables.
//
// A flag of the command line counts more than a variable, and a variable more than a file. Of the
// files the later one counts, in the order of their names. A list replaces the one before; with a +
// behind its name it is appended.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// DefaultFile is read if it is there. Drop-ins are beside it, in a folder of its name with .d.
const DefaultFile = "/etc/barque/config.yaml"

// None as the name of the file stands for no files and no variables.
const None = "none"

// Kind is the command that has the settings, as one file may be that of servers and agents.
type Kind struct {
	// Aliases are other names of settings in files, such as those that k3s has.
	Aliases map[string]string
	// Foreign are settings of other commands. They have no effect on this one.
	Foreign func(name string) bool
	// Secret are settings that may be in no file and in no variable, with the setting that names a
	// file in their place. A file of settings is read by many, and a variable by child processes.
	Secret map[string]string
	// Acts are flags that do something once. Only the command line has them.
	Acts []string
	// Own are flags that are no settings, such as help.
	Own []string
}

// Origin is the place that a setting's value has come from.
type Origin struct {
	// File is empty for a variable and for the command line.
	File string
	Line int
	// Variable is the name of the variable in the environment.
	Variable string
	// Also are the places of a list's earlier elements, to which this place appends.
	Also []Origin
}

func (o Origin) String() string {
	text := "the command line"
	switch {
	case o.Variable != "":
		text = "the variable " + o.Variable
	case o.File != "":
		text = o.File + ":" + strconv.Itoa(o.Line)
	}
	for _, earlier := range slices.Backward(o.Also) {
		text = earlier.String() + " and " + text
	}
	return text
}

// Loaded is what files and variables have set.
type Loaded struct {
	// Files are those that were read, in their order.
	Files []string
	// Origins are by the name of the flag. A flag without an origin has its default, or is of the
	// command line.
	Origins map[string]Origin
	// Unused are the settings in the files that are those of another command.
	Unused map[string]Origin
}

// entry is a setting of one place.
type entry struct {
	name    string
	append  bool
	scalar  string
	list    []string
	isList  bool
	written string // the name as it is written
	from    Origin
}

// Load reads the file, its drop-ins and the environment, and sets those flags that the command line
// does not. The file may be missing if it is DefaultFile, or has drop-ins. All errors are returned
// at once, each with its place.
func Load(flags *pflag.FlagSet, kind Kind, file string, environment []string) (*Loaded, error) {
	l := &Loaded{Origins: map[string]Origin{}, Unused: map[string]Origin{}}
	if file == None {
		return l, nil
	}
	files, err := filesOf(file)
	if err != nil {
		return nil, err
	}
	var all []entry
	var errs []error
	for _, path := range files {
		data, err := contents(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.Files = append(l.Files, path)
		entries, err := parse(path, data)
		if err != nil {
			errs = append(errs, err)
		}
		of := map[string]entry{}
		for _, e := range entries {
			err := kind.resolve(flags, &e)
			if other, again := of[e.name]; again && err == nil && other.append == e.append {
				err = fmt.Errorf("%v: %s is the same setting as %s, which line %d has already", e.from, e.written,
					other.written, other.from.Line)
			}
			of[e.name] = e
			var foreign errForeign
			switch {
			case errors.As(err, &foreign):
				l.Unused[e.name] = e.from
			case err != nil:
				errs = append(errs, err)
			default:
				all = append(all, e)
			}
		}
	}
	variables, err := kind.variables(flags, environment)
	if err != nil {
		errs = append(errs, err)
	}
	if err := kind.apply(flags, append(all, variables...), l.Origins); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return l, nil
}

// filesOf returns the file and its drop-ins, as far as they are there.
func filesOf(file string) ([]string, error) {
	var files []string
	switch _, err := os.Stat(file); {
	case err == nil:
		files = append(files, file)
	case !errors.Is(err, fs.ErrNotExist) || file != DefaultFile && !hasDropIns(file):
		return nil, fmt.Errorf("the file of settings: %w", err)
	}
	info, err := os.Stat(file + ".d")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return files, nil
	case err != nil:
		return nil, fmt.Errorf("the folder of settings: %w", err)
	}
	if err := trusted(file+".d", info, os.Geteuid()); err != nil {
		return nil, err
	}
	dropIns, err := os.ReadDir(file + ".d")
	if err != nil {
		return nil, fmt.Errorf("the folder of settings: %w", err)
	}
	for _, d := range dropIns { // in the order of their names
		if name := d.Name(); strings.HasSuffix(name, ".yaml") && !strings.HasPrefix(name, ".") {
			files = append(files, filepath.Join(file+".d", name))
		}
	}
	return files, nil
}

// hasDropIns distinguishes a file that was left out from a wrong name.
func hasDropIns(file string) bool {
	info, err := os.Stat(file + ".d")
	return err == nil && info.IsDir()
}

// contents reads a file. A node runs as root by its settings, so whoever may write them is root.
func contents(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if err := trusted(path, info, os.Geteuid()); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

// trusted refuses a file or a folder that a user beside root and the running user may write: as its
// owner, or as everybody may. Of a device such as /dev/null what is written does not come back.
func trusted(path string, info fs.FileInfo, user int) error {
	if info.Mode()&fs.ModeDevice != 0 {
		return nil
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("%s: everybody may write it, and with it decide what root does: chmod o-w %s", path, path)
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if known && owner.Uid != 0 && int(owner.Uid) != user {
		return fmt.Errorf("%s: it belongs to the user %d, who may write it, and with it decide what root does: chown root %s",
			path, owner.Uid, path)
	}
	return nil
}

// parse reads one file. Its errors have the file and the line.
func parse(file string, data []byte) ([]entry, error) {
	var document, more yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	switch err := decoder.Decode(&more); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, fmt.Errorf("%s: %w", file, err)
	default:
		return nil, fmt.Errorf("%s:%d: a second document after a line of ---: want all settings in one", file,
			more.Line)
	}
	if len(document.Content) == 0 || isNull(document.Content[0]) {
		return nil, nil // nothing but comments
	}
	top := document.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: want one setting on each line, as in `data-dir: /var/lib/barque`", file,
			top.Line)
	}
	var entries []entry
	var errs []error
	seen := map[string]int{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		e := entry{written: key.Value, from: Origin{File: file, Line: key.Line}}
		if first, again := seen[key.Value]; again {
			errs = append(errs, fmt.Errorf("%v: %s is set again; line %d has it already", e.from, key.Value, first))
			continue
		}
		seen[key.Value] = key.Line
		e.name, e.append = strings.CutSuffix(key.Value, "+")
		if err := e.take(value); err != nil {
			errs = append(errs, fmt.Errorf("%v: %s: %w", e.from, key.Value, err))
			continue
		}
		entries = append(entries, e)
	}
	return entries, errors.Join(errs...)
}

// take reads the value of a setting. Scalars are taken as they are written: 0640 is no octal
// number.
func (e *entry) take(value *yaml.Node) error {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	switch {
	case isNull(value):
		return errors.New("it has no value: give one, or leave it out")
	case value.Kind == yaml.ScalarNode:
		e.scalar = value.Value
	case value.Kind == yaml.SequenceNode:
		e.isList = true
		for _, item := range value.Content {
			if item.Kind != yaml.ScalarNode || isNull(item) {
				return fmt.Errorf("line %d: want a text in the list", item.Line)
			}
			e.list = append(e.list, item.Value)
		}
	default:
		return errors.New("want a value or a list; key=value is one element of a list")
	}
	return nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// errForeign is that of a setting of another command.
type errForeign struct{ name string }

func (e errForeign) Error() string { return e.name + " is a setting of another command" }

// resolve finds the flag of a setting.
func (k Kind) resolve(flags *pflag.FlagSet, e *entry) error {
	if alias, has := k.Aliases[e.name]; has {
		e.name = alias
	}
	if file, secret := k.Secret[e.name]; secret {
		return fmt.Errorf("%v: %s is a secret: write it into a file of its own, which root alone reads, and give its name as %s",
			e.from, e.written, file)
	}
	if slices.Contains(k.Acts, e.name) {
		return fmt.Errorf("%v: %s is done once, and would be done again at each start: give --%s on the command line",
			e.from, e.written, e.name)
	}
	if flags.Lookup(e.name) != nil && !slices.Contains(k.Own, e.name) {
		return nil
	}
	if k.Foreign != nil && k.Foreign(e.name) {
		return errForeign{e.name}
	}
	if like := k.nearest(flags, e.name); like != "" {
		return fmt.Errorf("%v: %s is no setting; did you mean %s?", e.from, e.written, like)
	}
	return fmt.Errorf("%v: %s is no setting; `barque config show server --all` lists those of a server, and "+
		"`barque config show agent --all` those of an agent", e.from, e.written)
}

// variables are the settings in the environment. Other variables may begin with BARQUE_, too.
func (k Kind) variables(flags *pflag.FlagSet, environment []string) ([]entry, error) {
	var entries []entry
	var errs []error
	for _, pair := range environment {
		variable, value, _ := strings.Cut(pair, "=")
		name, of := strings.CutPrefix(variable, "BARQUE_")
		if !of || name == "" || name != strings.ToUpper(name) {
			continue
		}
		e := entry{name: strings.ToLower(strings.ReplaceAll(name, "_", "-")), scalar: value, written: variable,
			from: Origin{Variable: variable}}
		if alias, has := k.Aliases[e.name]; has {
			e.name = alias
		}
		if _, secret := k.Secret[e.name]; !secret && (flags.Lookup(e.name) == nil || slices.Contains(k.Own, e.name)) {
			continue
		}
		if err := k.resolve(flags, &e); err != nil {
			errs = append(errs, err)
			continue
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return entries, errors.Join(errs...)
}

// apply sets the flags that the command line has not set.
func (k Kind) apply(flags *pflag.FlagSet, entries []entry, origins map[string]Origin) error {
	onLine := map[string]bool{}
	flags.Visit(func(f *pflag.Flag) { onLine[f.Name] = true })
	for secret, file := range k.Secret { // one is given in place of the other
		onLine[file] = onLine[file] || onLine[secret]
	}
	var errs []error
	for _, e := range entries {
		f := flags.Lookup(e.name)
		from := e.from
		if e.append {
			if earlier, has := origins[e.name]; has {
				from.Also = append(slices.Clone(earlier.Also), Origin{File: earlier.File, Line: earlier.Line})
			}
		}
		if onLine[e.name] {
			continue
		}
		if err := e.set(flags, f); err != nil {
			errs = append(errs, fmt.Errorf("%v: %s: %w", e.from, e.written, err))
			continue
		}
		origins[e.name] = from
	}
	return errors.Join(errs...)
}

// set gives the flag the value of the entry.
func (e entry) set(flags *pflag.FlagSet, f *pflag.Flag) error {
	list, isList := f.Value.(pflag.SliceValue)
	switch {
	case !isList && e.isList:
		return errors.New("it takes one value, and no list")
	case !isList && e.append:
		return errors.New("it takes one value: nothing can be appended with +")
	case !isList:
		return flags.Set(e.name, e.scalar)
	}
	items := e.list
	if !e.isList {
		items = []string{e.scalar}
		if f.Value.Type() == "stringSlice" {
			items = strings.Split(e.scalar, ",")
		}
	}
	if e.append {
		items = append(slices.Clone(list.GetSlice()), items...)
	}
	f.Changed = true
	return list.Replace(items)
}

// nearest returns the setting whose name is the likest, or nothing when none is like it.
func (k Kind) nearest(flags *pflag.FlagSet, name string) string {
	best, least := "", 1+len(name)/3
	unlike := slices.Concat(k.Own, k.Acts)
	consider := func(candidate string) {
		if d := distance(name, candidate); d <= least && (d < least || best == "" || candidate < best) {
			best, least = candidate, d
		}
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if _, secret := k.Secret[f.Name]; !secret && !f.Hidden && !slices.Contains(unlike, f.Name) {
			consider(f.Name)
		}
	})
	return best
}

// distance is the number of letters that have to be changed, added or removed (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j+1]+1, row[j]+1, cost)
		}
	}
	return row[len(b)]
}
