package cases

import "slices"

// AllOptions is the whole table: the tables of all options, each also at the other head
// dimensions, mixed batches as servers have them, and many compositions. It suits a GPU.
func AllOptions() []Case {
	all := optionTables(true)
	all = append(all, otherDims(all)...)
	all = append(all, lines(servingLines, true)...)
	all = append(all, lines(crowdLines, true)...)
	for n := range fullCompositions {
		all = append(all, RandomOptions(n))
	}
	return all
}

const fullCompositions = 160

// otherDims has one case of each option's table at each head dimension that the table
// lacks, in turn. Odd head dimensions come with odd layouts.
func otherDims(tables []Case) []Case {
	byName := map[string][]Case{}
	var names []string
	for _, c := range tables {
		if c.D != 64 || c.Dv != 64 {
			continue
		}
		if byName[c.Name] == nil {
			names = append(names, c.Name)
		}
		byName[c.Name] = append(byName[c.Name], c)
	}
	var all []Case
	for n, name := range names {
		for i, d := range [][2]int{{128, 128}, {96, 96}, {256, 256}, {32, 64}, {128, 64}, {192, 128}, {80, 80}, {40, 40}, {111, 111}, {7, 7}} {
			even := d[0]%32 == 0 && d[1]%32 == 0
			from := slices.DeleteFunc(slices.Clone(byName[name]), func(c Case) bool { return c.KeyType.Blocked() && !even })
			// The step has no factor in common with the lengths of most tables.
			all = append(all, from[(7*i+n)%len(from)].with(func(c *Case) {
				c.D, c.Dv = d[0], d[1]
				if !even {
					c.Layout, c.LSE, c.Access = Odd, i%3 != 0, Accesses[i%2]
				}
			}))
		}
	}
	return all
}

// servingLines are the batches of a server, judged by a sample of rows: three lengths, 600 decodes and 5 long prefills
// among them, and 600 decodes. Of the smaller ones every row is judged.
const servingLines = `serving:
	prefill d128 H4k1 bottom-right 1x1+235x235+13353x13353 packedq packedk bshd sample400
	+ -packedk page16
	+ d64
	+ d64 -packedk page64 window1023_0
	+ prefills605 -packedk page16
	+ prefills605 d64 -packedk page64 prefix256
	+ prefills605 d64
	+ prefills605 -packedk page16 split3
	+ server600 -packedq -packedk page1
	+ server600 -packedq -packedk page16 fp8
	+ d256 H32k8 none 1x32000 -packedq -packedk sparse0.02
	+ none 4*1x32000 -packedq -packedk page5 sparse0.05
	+ d576v512 H128k1 4*1x5000 -packedq -packedk page64 vink sample100
serving-decodes: prefill d128 H4k1 bottom-right server100 packedq page16 bshd sample4000
serving-crowd: prefill d128 H4k1 bottom-right prefills100 packedq page16 bshd sample4000`

// server are sequences of one row and up to `most` keys. If most is 900, every 121st is a long prefill.
func server(n, step, most int) (list []Seq) {
	for i := range n {
		s := Seq{i, 1, 1 + (i*step)%most}
		if most == 900 && i%121 == 60 {
			s.Rows, s.Keys = 1500+i, 2000+i
		}
		list = append(list, s)
	}
	return list
}

// crowdLines are packed batches of many short sequences and some long ones. The two kinds
// get separate dispatches if there are enough short ones for a device's cores.
const crowdLines = `crowd:
	prefill bottom-right crowd144 packedq packedk
	+ -packedk page16 -lse
	+ top-left -packedk page1 window40_0
	+ none looseq loosek
	+ d128 H8k1
	+ H2 softcap5 sinks
	+ d96 -packedk page64 prefix64 alibi
	+ bias-f16-bhr mask-bhr
	+ -packedk page16 int8 scale16
	+ q4_0
	+ d256 -packedk page5
	+ -packedk page16 blocks16x64-bh
	+ d576v512 H16k1 -packedk page64 vink # all rows of a fragment are a query's`

// crowd144 are the sequences of crowd, then 11 times the same with fewer rows.
func crowd144(crowd []Seq) (list []Seq) {
	for i := range 144 {
		s := crowd[i%len(crowd)]
		if i >= len(crowd) && s.Rows > 5 {
			s.Rows = 1 + i%2
		}
		list = append(list, Seq{i, s.Rows, s.Keys})
	}
	return list
}
