-- The ledger of paceline-core/src/fleet (ledger.rs, level.rs, settled.rs), step by step: a change of one is a change of both, and
-- tests/servers/conformance.rs compares their replies. Times are microseconds of the server's clock. Sums of what is held, owed and in
-- quarantine are kept beside the members, so that a request reads its own member alone; a division reads all,
-- where something has changed. A line that is nothing but constants is left out, and their names are numbers (constants.rs).
--
-- KEYS: state (hash), members (hash of id -> packed), leases (sorted set), quarantine (sorted set), board (hash: "n", "t" or "p" and a topic
--       -> packed).
-- ARGV: sync | bye | post | take | release | draw, lease, id, seq, run, elapsed, channel, ttl in ms, limits as text, their number, and of each units, quarantine,
--       turn, least time between two divisions. Then for sync: weight, since and asked of a quiet run or -1 and -1, the newest note that
--       was heard, and for each limit has, want, lump; for bye: for each limit the number of what was taken, and of each its age and
--       units; for the board (board.rs): topic, how long it lasts, and the values of a note;
--       for draw (pot.rs) units, lump, back, unpaid, and what was announced: limit, remaining, missing, left, gradually, window.
local STATE, MEMBERS, LEASES, QUARANTINE, BOARD = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local AHEAD, EXPIRIES, WOKEN, WOKEN_TO_LEND, NOTES = 1000000, 16, 16, 64, 256
local TURN, LONGEST, HOUR = 65536, 1099511627776, 3600000000
local max, min, floor, abs = math.max, math.min, math.floor, math.abs
local call = redis.call

local place_in_args = 0
local function arg()
    place_in_args = place_in_args + 1
    return ARGV[place_in_args]
end
local function number() return tonumber(arg()) end
local function text(value) return string.format('%.0f', value) end

local operation, lease, id, seq, run, elapsed = arg(), number(), arg(), number(), arg(), number()
local channel, ttl, names = arg(), number(), arg()

-- What is kept of a limit, and of a member's part in it, in the order in which it is packed.
local UNITS, KEPT, TURN_LASTS, EVERY, HELD, OWED, ASIDE, DIVIDED, CONTENDED, LINE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- settled.rs: what the last division stands on, if ROOM is not 0, and the sums of all members; behind all others, for members of an
-- older version leave it out.
local ROOM, CAPACITY, LEFT_OVER, WEIGHTS, MOVES, HINTS, WANTS, SPARES, TARGETS = 11, 12, 13, 14, 15, 16, 17, 18, 19
-- What all members lack for one call, behind all that.
local LACKING = 20
local AMPLE, ENOUGH, SHORT = 1, 2, 3
-- level.rs: how a member stands in the line.
local STAYS, WAITS, RESTS = 1, 2, 3
-- pot.rs
local GRADUALLY, OVER, LIMIT, RESETS, LEFT, AT, LACKS, PERIOD = 1, 2, 3, 4, 5, 6, 7, 8
local MINUTE, FAR, UNKNOWN = 60000000, 10000000, 1000000
-- SINCE is -1 for a member that has no place in the line, and -2 for one that waits there.
local HAS, WANT, LUMP, TARGET, TOLD, SINCE, PASS = 1, 2, 3, 4, 5, 6, 7

-- Of each limit its place among the former ones, or 0, where a member brings others; and how many those were.
local from, former = nil, 0
local fields = { 'run', 'now', 'shift', 'recovers', 'limits', 'books', 'count', 'newest', 'windows' }
local state = call('HMGET', STATE, unpack(fields))
local known_run, clock_now, shift = state[1], tonumber(state[2] or '0'), tonumber(state[3] or '0')
local recovers, count, newest = tonumber(state[4] or '-1'), tonumber(state[7] or '0'), tonumber(state[8] or '0')
local function server_clock()
    local time = call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
if state[5] and state[5] ~= names then
    local now = server_clock() + shift
    local aside = call('ZCOUNT', QUARANTINE, string.format('(%.0f', now), '+inf')
    if known_run == run and recovers < 0 and aside == 0 and call('HLEN', MEMBERS) == 0 then
        -- Its last member has left, and nothing of it counts any more.
        state[6] = false
        call('DEL', QUARANTINE)
    else
        -- Other limits are adopted from a member that no other one lives beside: see Ledger::adopt.
        local function kinds(words)
            local list, rest = {}, ''
            for piece in (words .. ', '):gmatch('(.-), ') do
                local kind = piece:match('^%d+ (.*)$')
                if kind then list[#list + 1] = kind else rest = rest .. piece end
            end
            return list, rest
        end
        local theirs, their_rest = kinds(state[5])
        local ours, our_rest = kinds(names)
        local taken, places = {}, {}
        for k, kind in ipairs(ours) do
            places[k] = 0
            for place, other in ipairs(theirs) do
                if places[k] == 0 and other == kind and not taken[place] then places[k], taken[place] = place, true end
            end
        end
        local since, own = max(now, clock_now) - lease - AHEAD, call('HGET', MEMBERS, id)
        local living = call('ZCOUNT', LEASES, string.format('(%.0f', since), '+inf')
        if own and cmsgpack.unpack(own)[2] > since then living = living - 1 end
        if operation ~= 'sync' or living > 0 or their_rest ~= our_rest then
            return redis.error_reply('LIMITS ' .. state[5])
        end
        from, former = places, #theirs
    end
end
local kept = state[6] and cmsgpack.unpack(state[6]) or {}
local books = {}
for k = 1, number() do
    books[k] = { number(), number(), number(), number() }
    local place = from and from[k] or k
    for field = HELD, LINE do
        books[k][field] = place > 0 and kept[(place - 1) * 6 + field - EVERY] or (field == DIVIDED and -1 or 0)
    end
    if from then books[k][DIVIDED] = -1 end
end
-- What is kept of a division, and when the server was last told for how long it keeps the keys.
local settled_from, expires_at, expires = #books * 6, #books * 15 + 1, -1
if not from and #kept > settled_from then
    for k, book in ipairs(books) do
        for field = ROOM, TARGETS do book[field] = kept[settled_from + (k - 1) * 9 + field - LINE] end
        book[LACKING] = kept[expires_at + k]
        -- A member of an older version has left that out: the next division sums it.
        if not book[LACKING] then book[LACKING], book[ROOM] = 0, 0 end
    end
    expires = kept[expires_at]
else
    for _, book in ipairs(books) do
        for field = ROOM, LACKING do book[field] = 0 end
    end
end
-- A key that is written may not have been there.
local is_new = not state[6]

local function save()
    local sums, windows, n = {}, {}, 0
    for k = 1, #books do
        local book = books[k]
        for field = HELD, LINE do
            n = n + 1
            sums[n] = book[field]
        end
        windows[k] = book[KEPT]
    end
    for k = 1, #books do
        local book = books[k]
        for field = ROOM, TARGETS do
            n = n + 1
            sums[n] = book[field]
        end
    end
    -- For so long after the last request, and an hour more: then it need not be said each time.
    local lives = is_new or expires < 0 or clock_now - expires >= HOUR or clock_now < expires
    if lives then expires = clock_now end
    sums[n + 1] = expires
    for k = 1, #books do sums[n + 1 + k] = books[k][LACKING] end
    call('HSET', STATE, 'now', text(clock_now), 'books', cmsgpack.pack(sums))
    local words = { known_run or '', false, text(shift), text(recovers), names, false, text(count), text(newest) }
    if state[5] ~= names or not state[9] then call('HSET', STATE, 'windows', cmsgpack.pack(windows)) end
    for place, word in ipairs(words) do
        if word and word ~= state[place] then call('HSET', STATE, fields[place], word) end
    end
    if lives then
        for _, key in ipairs(KEYS) do call('PEXPIRE', key, ttl + HOUR / 1000) end
    end
end

if from then
    -- Ledger::adopt: what is kept of each limit goes to its new place. Returns whether that may be.
    local function adopt()
        local to, is_same, longest = {}, former == #books, -1
        for k, place in ipairs(from) do
            is_same = is_same and place == k
            if place > 0 then to[place], longest = k, max(longest, books[k][KEPT]) end
        end
        if is_same then return true end
        local now, windows = max(server_clock() + shift, clock_now), state[9] and cmsgpack.unpack(state[9]) or {}
        if longest < 0 or recovers > now then return false end
        for place = 1, former do
            if not to[place] and (windows[place] or longest + 1) > longest then return false end
        end
        local aside = call('ZRANGE', QUARANTINE, 0, -1, 'WITHSCORES')
        call('DEL', QUARANTINE)
        for n = 1, #aside, 2 do
            local place, rest = aside[n]:match('^(%d+)(:.*)$')
            local k = to[tonumber(place)]
            if k then call('ZADD', QUARANTINE, aside[n + 1], k .. rest) end
        end
        local all = call('HGETALL', MEMBERS)
        for n = 1, #all, 2 do
            local values = cmsgpack.unpack(all[n + 1])
            local moved = { values[1], values[2], values[3] }
            for _, place in ipairs(from) do
                for field = HAS, PASS do
                    moved[#moved + 1] = place > 0 and values[3 + (place - 1) * 7 + field] or (field == SINCE and -1 or 0)
                end
            end
            call('HSET', MEMBERS, all[n], cmsgpack.pack(moved))
        end
        for k, place in ipairs(from) do
            if place == 0 then
                count = count + 1
                local until_then = string.format('%.0f', now + min(books[k][KEPT], longest))
                call('ZADD', QUARANTINE, until_then, k .. ':' .. string.format('%.0f', books[k][UNITS]) .. ':' .. count)
                books[k][ASIDE] = books[k][UNITS]
            end
        end
        save()
        return true
    end
    if not adopt() then return redis.error_reply('LIMITS ' .. state[5]) end
end

-- message.rs: what may be held beyond the wants.
local function spare(want) return floor((want + 3) / 4) end
local function ceiling(book, want)
    if book[CONTENDED] == 1 then return want end
    return min(want + spare(want), book[UNITS])
end

local function missing(part) return max(part[TARGET] - part[HAS], 0) end

-- level.rs: what a part lacks for a call that its share has room for, and what it lends to those.
local function lacks(part)
    local has, lump, target = part[HAS], part[LUMP], part[TARGET]
    if has >= lump or target < lump or (part[SINCE] >= 0 and floor(target / 2) < lump) then return 0 end
    return lump - has
end
local function lends(part, lacking)
    local lent = min(lacking, part[LUMP])
    return part[HAS] <= part[TARGET] and part[HAS] >= part[LUMP] + lent and lent or 0
end
local function pooled(book) return max(book[UNITS] - book[HELD] - book[ASIDE], 0) end

local function unpacked(packed)
    if not packed then return nil end
    local values = cmsgpack.unpack(packed)
    local member = { seq = values[1], heard = values[2], weight = values[3], parts = {} }
    for k = 1, #books do
        local from, part = 3 + (k - 1) * 7, {}
        for field = HAS, PASS do part[field] = values[from + field] end
        member.parts[k] = part
    end
    return member
end

local function packed(member)
    local values = { member.seq, member.heard, member.weight }
    for _, part in ipairs(member.parts) do
        for field = HAS, PASS do values[#values + 1] = part[field] end
    end
    return cmsgpack.pack(values)
end

-- Counts a member in the sums of every limit, or no longer.
local function sum(member, sign)
    for k, part in ipairs(member.parts) do
        local book = books[k]
        book[HELD], book[OWED] = book[HELD] + sign * part[HAS], book[OWED] + sign * missing(part)
        book[WANTS], book[SPARES] = book[WANTS] + sign * part[WANT], book[SPARES] + sign * spare(part[WANT])
        book[TARGETS] = book[TARGETS] + sign * part[TARGET]
        if part[HAS] < part[LUMP] then book[LACKING] = book[LACKING] + sign * lacks(part) end
    end
end

-- A member is gone: others may have more.
local function loses(member)
    sum(member, -1)
    for _, book in ipairs(books) do
        if book[ROOM] == SHORT then book[ROOM] = 0 end
    end
end

-- settled.rs
local function room_of(capacity, wants, spares)
    if wants + spares <= capacity then return AMPLE end
    return wants <= capacity and ENOUGH or SHORT
end

local function is_short(book, want, weight) return want * book[WEIGHTS] > book[LEFT_OVER] * weight end

-- Book::hear: a member says what it holds, wants, and what its next call costs. Its weight: before, if it was known, and now. The sums
-- are those of the others.
local function hear_stake(book, part, has, weighed, weight)
    local want, lump, target = min(number(), book[UNITS]), min(max(number(), 1), book[UNITS]), part[TARGET]
    local had_want, had_lump = part[WANT], part[LUMP]
    part[HAS], part[WANT], part[LUMP], part[TARGET] = has, want, lump, min(target, ceiling(book, want))
    if book[ROOM] == 0 then return end
    local capacity = max(book[UNITS] - book[ASIDE], 0)
    if book[ROOM] == SHORT then
        local stands = part[TARGET] == target and book[CAPACITY] == capacity and weighed == weight and had_lump == lump
            and (had_want == want or (is_short(book, had_want, weight) and is_short(book, want, weight)))
        if not stands then book[ROOM] = 0 end
        return
    end
    local extra = spare(want)
    local rest = capacity - book[TARGETS] - want
    if rest < 0 or room_of(capacity, book[WANTS] + want, book[SPARES] + extra) ~= book[ROOM] then
        book[ROOM] = 0
        return
    end
    part[TARGET], part[SINCE] = want + (weighed and min(extra, rest) or 0), -1
end

local function set_aside(k, from, units)
    if units > 0 then
        count, is_new = count + 1, true
        call('ZADD', QUARANTINE, string.format('%.0f', from + books[k][KEPT]), k .. ':' .. string.format('%.0f', units) .. ':' .. count)
        books[k][ASIDE] = books[k][ASIDE] + units
    end
end

local function read_clock(known)
    local store = server_clock()
    local shifted = store + shift
    local at = shifted
    if known and elapsed > 0 and shifted > known.heard + elapsed + AHEAD then at = known.heard + elapsed end
    at = max(at, clock_now)
    shift, clock_now = shift + at - shifted, at
    return at, store
end

local function forget(member, name, ended)
    loses(member)
    for k, part in ipairs(member.parts) do set_aside(k, ended, part[HAS]) end
    call('HDEL', MEMBERS, name)
    call('ZREM', LEASES, name)
end

local function end_leases(now, own)
    local lasts, left = lease + AHEAD, EXPIRIES
    if own and own.heard + lasts <= now then
        forget(own, id, own.heard + lasts)
        left, own = left - 1, nil
    end
    for _, name in ipairs(call('ZRANGEBYSCORE', LEASES, '-inf', string.format('%.0f', now - lasts), 'LIMIT', 0, left)) do
        local member = unpacked(call('HGET', MEMBERS, name))
        forget(member, name, member.heard + lasts)
    end
    if recovers >= 0 and recovers <= now then
        for k, book in ipairs(books) do set_aside(k, recovers, pooled(book)) end
        recovers = -1
    end
    local aside = 0
    for _, book in ipairs(books) do aside = aside + book[ASIDE] end
    if aside == 0 then return own end
    local over = string.format('%.0f', now)
    local ended = call('ZRANGEBYSCORE', QUARANTINE, '-inf', over)
    for _, entry in ipairs(ended) do
        local k, units = entry:match('^(%d+):(%d+):')
        local book = books[tonumber(k)]
        book[ASIDE] = book[ASIDE] - tonumber(units)
    end
    if #ended > 0 then call('ZREMRANGEBYSCORE', QUARANTINE, '-inf', over) end
    return own
end

local wakes = {}

-- Divides a limit anew: level.rs has what goes round, and who gives way to those that save up. `all` are the other members, read when
-- they are first needed.
local all
local function divide_anew(now, k, own, stands)
    local book = books[k]
    local function whole_calls(share, step)
        local whole = floor(share)
        return whole - whole % step
    end

    local function go_round(now, book, room, most, line)
        table.sort(line, function(a, b)
            if a.stands ~= b.stands then return a.stands < b.stands end
            if a.pass ~= b.pass then return a.pass < b.pass end
            return a.id < b.id
        end)
        local given = 0
        for _, turn in ipairs(line) do
            local part, rests = turn.part, turn.stands == RESTS
            if turn.step > room and (rests or room == 0 or given + turn.step > most) then
                if not rests then room, part[SINCE] = 0, -2 end
            else
                room, given = max(room - turn.step, 0), given + turn.step
                part[TARGET] = part[TARGET] + turn.step
                if turn.stands ~= STAYS then
                    book[LINE] = max(turn.pass, book[LINE])
                    part[PASS], part[SINCE] = turn.pass + turn.wait, now
                end
            end
        end
        return given
    end

    local function give_way(left, others)
        local weights = 0
        for _, entry in ipairs(others) do weights = weights + entry.weight end
        for _, entry in ipairs(others) do
            local share, part = left * entry.weight / weights, entry.part
            if part[TARGET] > share then part[TARGET] = whole_calls(share, part[LUMP]) end
            left, weights = left - part[TARGET], weights - entry.weight
        end
    end

    -- Part::moves: when a division comes out differently by itself. Where a turn has begun or ended, the next one sees who stands where.
    local function moves(now, book, turn, rests)
        local since, at = turn.part[SINCE], now
        if since == turn.had then
            if since < 0 then return end
            at = since + book[TURN_LASTS]
            if at <= now and rests then at = since + floor(min(book[TURN_LASTS] * turn.wait / TURN, LONGEST)) + 1 end
            if at <= now then return end
        end
        if book[MOVES] < 0 or at < book[MOVES] then book[MOVES] = at end
    end

    -- Sets the targets.
    local function level(now, book, parts)
        local capacity = max(book[UNITS] - book[ASIDE], 0)
        table.sort(parts, function(a, b)
            local left, right = a.part[WANT] * b.weight, b.part[WANT] * a.weight
            if left ~= right then return left < right end
            return a.id < b.id
        end)
        local left, weights = capacity, 0
        for _, entry in ipairs(parts) do weights = weights + entry.weight end
        local satisfied, spares = 0, 0
        for _, entry in ipairs(parts) do
            if entry.part[WANT] * weights > left * entry.weight then break end
            left, weights = left - entry.part[WANT], weights - entry.weight
            spares = spares + spare(entry.part[WANT])
            satisfied = satisfied + 1
        end
        local is_roomy = satisfied == #parts and spares <= left
        for n = 1, satisfied do
            local part = parts[n].part
            part[TARGET], part[SINCE] = part[WANT] + (is_roomy and spare(part[WANT]) or 0), -1
        end
        book[ROOM] = satisfied < #parts and SHORT or (is_roomy and AMPLE or ENOUGH)
        book[CAPACITY], book[LEFT_OVER], book[WEIGHTS], book[MOVES] = capacity, left, weights, -1
        local rest, largest, line, others = left, 0, {}, {}
        for n = 1, satisfied do others[n] = parts[n] end
        for n = satisfied + 1, #parts do
            local entry = parts[n]
            local part = entry.part
            local share, step = left * entry.weight, part[LUMP]
            local base = whole_calls(share / weights, step)
            rest = max(rest - base, 0)
            local fraction = share - base * weights
            local age = part[SINCE] >= 0 and max(now - part[SINCE], 0)
            local stays, holds = age and age < book[TURN_LASTS], part[TARGET] >= step
            part[TARGET] = base
            if base > 0 then others[#others + 1], largest = entry, max(largest, step) end
            if fraction <= 0 then
                part[SINCE] = -1
            else
                if part[SINCE] == -1 then part[PASS], part[SINCE] = max(part[PASS], book[LINE]), -2 end
                local wait = floor(min(max(TURN * step * weights / fraction, 1), LONGEST))
                part[PASS] = min(part[PASS], book[LINE] + wait)
                local turn = { stands = WAITS, pass = part[PASS], id = entry.id, step = step, wait = wait, part = part }
                turn.had, turn.fraction, turn.saves_up = part[SINCE], fraction, base == 0
                if stays and (holds or base > 0) then turn.stands = STAYS
                elseif age and not stays and base == 0 and age * TURN < book[TURN_LASTS] * wait then turn.stands = RESTS end
                line[#line + 1] = turn
            end
        end
        local large, small, remainders = {}, {}, 0
        for _, turn in ipairs(line) do
            if turn.saves_up and turn.step > largest then
                large[#large + 1] = turn
            else
                if turn.stands == RESTS then turn.stands = WAITS end
                remainders, small[#small + 1] = remainders + turn.fraction, turn
            end
        end
        local saved = go_round(now, book, max(rest - floor(remainders / weights), 0), capacity, large)
        go_round(now, book, max(rest - saved, 0), 0, small)
        if saved > rest then
            give_way(capacity - saved, others)
            -- Who gives way depends on what each wants.
            book[WEIGHTS] = 0
        end
        for _, turn in ipairs(large) do moves(now, book, turn, true) end
        for _, turn in ipairs(small) do moves(now, book, turn, false) end
        book[CONTENDED] = satisfied < #parts and 1 or 0
        book[WANTS], book[SPARES], book[TARGETS] = 0, 0, 0
        for _, entry in ipairs(parts) do
            local part = entry.part
            book[WANTS], book[SPARES] = book[WANTS] + part[WANT], book[SPARES] + spare(part[WANT])
            book[TARGETS] = book[TARGETS] + part[TARGET]
        end
    end
    -- Ledger::wake_lenders
    local function wake_lenders(book, parts)
        local lacking, lenders = max(book[LACKING] - pooled(book), 0), {}
        if lacking == 0 then return end
        for _, other in ipairs(parts) do
            local part = other.part
            local is_lending = part[TOLD] < min(part[HAS], part[TARGET])
            if other.id ~= id and lends(part, lacking) > 0 and not is_lending then lenders[#lenders + 1] = other end
        end
        table.sort(lenders, function(a, b)
            if a.part[HAS] ~= b.part[HAS] then return a.part[HAS] > b.part[HAS] end
            return a.id < b.id
        end)
        for n = 1, min(#lenders, WOKEN_TO_LEND - #wakes) do wakes[#wakes + 1] = lenders[n].id end
    end

    book[DIVIDED] = now
    if not all then
        all = {}
        local fields = call('HGETALL', MEMBERS)
        for n = 1, #fields, 2 do
            if fields[n] ~= id then all[#all + 1] = { id = fields[n], was = fields[n + 1], member = unpacked(fields[n + 1]) } end
        end
    end
    local parts = { { id = id, weight = own.weight, part = own.parts[k] } }
    for _, other in ipairs(all) do
        parts[#parts + 1] = { id = other.id, weight = other.member.weight, part = other.member.parts[k] }
    end
    if not stands then level(now, book, parts) end
    book[OWED], book[LACKING] = 0, 0
    local changed, starves = {}, false
    for _, other in ipairs(parts) do
        local part = other.part
        book[OWED], book[LACKING] = book[OWED] + missing(part), book[LACKING] + lacks(part)
        starves = starves or (part[HAS] < part[LUMP] and part[TARGET] >= part[LUMP])
    end
    -- Little less than a member knows of is worth a hint only where another one has not enough for one call.
    for _, other in ipairs(parts) do
        local part = other.part
        local told = abs(part[TOLD] - part[TARGET])
        local is_less = part[HAS] > part[TARGET] and (told * 16 > part[TOLD] or (starves and told > 0))
        if other.id ~= id and (part[HAS] < part[TARGET] or is_less) then
            changed[#changed + 1] = other
        end
    end
    table.sort(changed, function(a, b)
        local left, right = abs(a.part[HAS] - a.part[TARGET]), abs(b.part[HAS] - b.part[TARGET])
        if left ~= right then return left > right end
        return a.id < b.id
    end)
    local pool, woken, before = pooled(book), 0, #wakes
    for _, other in ipairs(changed) do
        local missed = missing(other.part)
        if missed == 0 or pool > 0 then
            wakes[#wakes + 1], woken = other.id, woken + 1
            if woken == WOKEN then break end
        end
        pool = max(pool - missed, 0)
    end
    wake_lenders(book, parts)
    -- A hint may be lost.
    book[HINTS] = #wakes - before
end

-- If something has changed; else it only looks for members that a hint would help.
local function divide(now, k, own)
    local book = books[k]
    if book[DIVIDED] >= 0 and max(now - book[DIVIDED], 0) < book[EVERY] then return end
    local stands = book[ROOM] > 0 and (book[MOVES] < 0 or now < book[MOVES])
    local helps = pooled(book) > 0 and book[OWED] > missing(own.parts[k])
    if not stands or helps or book[HINTS] > 0 then divide_anew(now, k, own, stands) end
end

-- board.rs: notes are {number, from, seq, until, values...}, what is taken {by, until}.
local function told(now, topic, note)
    local values = {}
    for n = 5, #note do values[#values + 1] = text(note[n]) end
    return { note[1], note[2], note[4] - now, values, topic }
end

local function news(now, heard)
    local found = {}
    if heard == newest then return found end
    if heard > newest then heard = 0 end
    local fields = call('HGETALL', BOARD)
    for n = 1, #fields, 2 do
        if fields[n]:sub(1, 1) == 'n' then
            local note = cmsgpack.unpack(fields[n + 1])
            if note[1] > heard and note[4] > now then found[#found + 1] = told(now, fields[n]:sub(2), note) end
        end
    end
    table.sort(found, function(a, b) return a[1] < b[1] end)
    return found
end

local function board()
    -- pot.rs: what a server has left of a limit that it announced, of which all members draw.
    local function note_rate(pot, announced)
        if announced.gradually == 1 and announced.missing > 0 and announced.left > 0 and announced.missing >= pot[LACKS] then
            pot[LACKS], pot[PERIOD] = announced.missing, announced.left
        end
    end

    local function refill(pot, now)
        if pot[GRADUALLY] == 0 then
            if pot[AT] <= now then
                pot[LEFT] = pot[LIMIT]
                pot[AT] = (pot[AT] + pot[RESETS] > now and pot[AT] or now) + pot[RESETS]
            end
            return
        end
        local since = max(now - pot[AT], 0)
        local units = pot[LACKS] > 0 and floor(since * pot[LACKS] / pot[PERIOD]) or 0
        local most = pot[LIMIT] - floor(pot[LIMIT] / 8)
        if pot[LEFT] + units >= most then
            pot[LEFT], pot[AT] = max(pot[LEFT], most), now
        elseif units > 0 then
            pot[LEFT], pot[AT] = pot[LEFT] + units, pot[AT] + units * pot[PERIOD] / pot[LACKS]
        end
    end

    local function hear(pot, now, announced)
        local remaining = announced.remaining
        if announced.limit ~= pot[LIMIT] then pot[LIMIT], pot[LACKS] = announced.limit, 0 end
        if announced.gradually ~= pot[GRADUALLY] then pot[GRADUALLY], pot[AT] = announced.gradually, now end
        if pot[GRADUALLY] == 1 then
            pot[LEFT] = min(pot[LEFT], remaining)
            return note_rate(pot, announced)
        end
        local ends = now + announced.left
        pot[RESETS] = announced.window
        if ends > pot[AT] + pot[RESETS] / 2 then
            pot[LEFT], pot[AT] = remaining, ends
        elseif ends + pot[RESETS] / 2 >= pot[AT] then
            pot[LEFT], pot[AT] = min(pot[LEFT], remaining), max(pot[AT], ends)
        end
    end

    local function draw(now, topic, pot, pots)
        local units, lump, back, unpaid = number(), number(), number(), number()
        local announced
        if place_in_args < #ARGV then
            announced = { limit = number(), remaining = number(), missing = number(), left = number(), gradually = number() }
            announced.window = number()
        end
        if not pot then
            if not announced or pots >= NOTES then return { 0, { 0 }, {}, 0, {} } end
            local at = now + (announced.gradually == 1 and 0 or announced.left)
            pot = { announced.gradually, 0, announced.limit, announced.window, announced.remaining, at, 0, 1 }
            note_rate(pot, announced)
        end
        refill(pot, now)
        pot[LEFT] = pot[LEFT] + back - unpaid
        if announced then hear(pot, now, announced) end
        pot[OVER] = now + max(MINUTE, 2 * pot[RESETS])
        local fair = max(lump, floor(pot[LEFT] / max(call('HLEN', MEMBERS), 1)))
        local gives, after, waits = 0, 0, UNKNOWN
        if pot[GRADUALLY] == 0 then
            gives, waits = pot[LEFT] < lump and 0 or min(units, fair, pot[LEFT]), pot[AT] - now
        elseif pot[LEFT] >= lump then
            gives, waits = min(units, fair, pot[LEFT]), MINUTE
        elseif pot[LACKS] > 0 then
            local comes = math.ceil((lump - pot[LEFT]) * pot[PERIOD] / pot[LACKS])
            if comes > FAR then waits = comes - FAR else gives, after, waits = min(units, lump), comes, MINUTE end
        end
        pot[LEFT] = pot[LEFT] - gives
        call('HSET', BOARD, 'p' .. topic, cmsgpack.pack(pot))
        return { gives, { floor(after) }, {}, floor(max(waits, 1)), {} }
    end

    -- No lease depends on it: a step of the server's clock, which is not noticed here, moves nothing.
    local topic, lasts, now = arg(), number(), max(server_clock() + shift, clock_now)
    local kinds, fields = { n = 0, t = 0, p = 0 }, call('HGETALL', BOARD)
    local known = {}
    for n = 1, #fields, 2 do
        local kind, entry = fields[n]:sub(1, 1), cmsgpack.unpack(fields[n + 1])
        if entry[kind == 'n' and 4 or 2] <= now then
            call('HDEL', BOARD, fields[n])
        else
            kinds[kind], known[fields[n]] = kinds[kind] + 1, entry
        end
    end
    if operation == 'draw' then return draw(now, topic, known['p' .. topic], kinds.p) end
    if operation == 'post' then
        local before = known['n' .. topic]
        local late = before and before[2] == id and seq <= before[3]
        if late or (not before and kinds.n >= NOTES) then return { 0, {}, {}, 0, {} } end
        newest = newest + 1
        local note = { newest, id, seq, now + lasts }
        while place_in_args < #ARGV do note[#note + 1] = number() end
        call('HSET', BOARD, 'n' .. topic, cmsgpack.pack(note))
        local all = told(now, topic, note)
        call('PUBLISH', channel, table.concat({ '!', text(all[1]), all[2], text(all[3]), table.concat(all[4], ','), topic }, ' '))
        return { 0, {}, {}, 0, { all } }
    end
    local taken, waits = known['t' .. topic], 0
    if operation == 'release' then
        if taken and taken[1] == id then call('HDEL', BOARD, 't' .. topic) end
    elseif taken and taken[1] ~= id then
        waits = taken[2] - now
    elseif taken or kinds.t < NOTES then
        call('HSET', BOARD, 't' .. topic, cmsgpack.pack({ id, now + lasts }))
    else
        waits = lasts
    end
    return { 0, {}, {}, waits, {} }
end

local reply
if operation == 'sync' or operation == 'bye' then
    local own = unpacked(call('HGET', MEMBERS, id))
    if own and seq <= own.seq then return false end
    if operation == 'bye' and not own then return { 0, {}, {}, 0, {} } end
    if operation == 'bye' then
        local now = read_clock(own)
        if end_leases(now, own) then
            loses(own)
            call('HDEL', MEMBERS, id)
            call('ZREM', LEASES, id)
            for k = 1, #books do
                for _ = 1, number() do
                    local ago, units = number(), number()
                    set_aside(k, max(now - ago, 0), units)
                end
            end
        end
        reply = { 0, {}, {}, 0, {} }
    else
        local weight, since, asked, heard = number(), number(), number(), number()
        local now, store = read_clock(own)
        if known_run ~= run then
            known_run, recovers = run, now + lease + AHEAD
            for _, book in ipairs(books) do
                book[HELD], book[OWED], book[ASIDE], book[ROOM], book[WANTS], book[SPARES], book[TARGETS] = 0, 0, 0, 0, 0, 0, 0
                book[LACKING] = 0
            end
            call('DEL', MEMBERS, LEASES, QUARANTINE, BOARD)
            own, newest = nil, 0
        end
        if asked >= 0 and asked <= store and recovers >= 0 then
            -- Ledger::shorten_recovery
            local quiet, whole = max(store - since, 0), now + lease + AHEAD
            asked = store - asked
            if asked < lease and recovers >= whole - asked then recovers = max(min(whole - quiet, recovers), 0) end
        end
        own = end_leases(now, own)
        local believed, weighed = recovers >= 0 and not own, own and own.weight
        if own then
            sum(own, -1)
        else
            own, is_new = { parts = {} }, true
            for k = 1, #books do own.parts[k] = { 0, 0, 0, 0, 0, -1, 0 } end
        end
        own.seq, own.heard, own.weight = seq, now, min(max(weight, 1), 16)
        for k, book in ipairs(books) do
            local unclaimed = believed and pooled(book) or 0
            local part = own.parts[k]
            hear_stake(book, part, min(number(), part[HAS] + unclaimed), weighed, own.weight)
        end
        sum(own, 1)
        local grants = {}
        for k, book in ipairs(books) do
            local part, lost = own.parts[k], 0
            if recovers < 0 then
                divide(now, k, own)
                local had, missed, pool = part[HAS], missing(part), pooled(book)
                local lacked = had < part[LUMP] and lacks(part) or 0
                local owed, lacking = book[OWED] - missed, max(book[LACKING] - lacked, 0)
                -- What others lack for a call comes first, but for what it lacks itself.
                local due = min(missed, lacked > 0 and pool or max(pool - lacking, 0))
                local more = min(max(part[WANT] - part[HAS] - due, 0), max(pool - due - owed, 0))
                part[HAS] = part[HAS] + due
                if more > 0 and part[HAS] + more >= part[LUMP] then
                    part[HAS] = part[HAS] + more
                    if part[HAS] > part[TARGET] then
                        book[TARGETS] = book[TARGETS] + part[HAS] - part[TARGET]
                        part[TARGET], book[ROOM] = part[HAS], 0
                    end
                end
                lacking = lacking - pool + part[HAS] - had
                local lent = lacking > 0 and lends(part, lacking) or 0
                part[TOLD] = lent > 0 and part[HAS] - lent or part[TARGET]
                if lacked > 0 then book[LACKING] = book[LACKING] + lacks(part) - lacked end
                book[HELD] = book[HELD] + part[HAS] - had
                book[OWED] = book[OWED] + missing(part) - missed
            else
                part[TOLD], lost = part[HAS], pooled(book)
            end
            grants[#grants + 1] = { part[HAS], part[TOLD], book[ASIDE] + lost, book[CONTENDED] }
        end
        call('HSET', MEMBERS, id, packed(own))
        call('ZADD', LEASES, string.format('%.0f', own.heard), id)
        for _, other in ipairs(all or {}) do
            local is = packed(other.member)
            if is ~= other.was then call('HSET', MEMBERS, other.id, is) end
        end
        reply = { call('HLEN', MEMBERS), grants, wakes, newest, news(now, heard) }
    end
else
    is_new = true
    reply = board()
end

save()
if #wakes > 0 then call('PUBLISH', channel, table.concat(wakes, ' ')) end
return reply
