package bench

// Tally counts rows by status, for the exit code.
type Tally struct {
	Rows  int
	Count map[Status]int
	First map[Status]string // what was said of the first row of each status
}

// Add counts a row.
func (t *Tally) Add(s Status, text string) {
	if t.Count == nil {
		t.Count, t.First = map[Status]int{}, map[Status]string{}
	}
	t.Rows++
	t.Count[s]++
	if t.First[s] == "" {
		t.First[s] = text
	}
}
